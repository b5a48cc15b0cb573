"""Pure: windows of measurements in, decisions out. No I/O, no clock, no randomness."""
