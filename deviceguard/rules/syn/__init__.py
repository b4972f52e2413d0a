"""SYN: what makes the host wait for the device."""
