class CalibrationError(Exception):
    """A calibration cannot begin or go on; the message says why and what to do."""
