"""What to do with a finding: record, warn, raise, or repair."""
