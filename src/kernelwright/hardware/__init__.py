"""What the machine is and what it can do: detection, peaks, calibration, lock."""
