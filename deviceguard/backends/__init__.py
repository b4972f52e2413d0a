"""What is known of each kind of device. Nothing outside this folder (and ``simulate``) names a device type."""
