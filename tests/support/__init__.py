"""What the tests share: loops that are obviously right, gradient checks, planted errors, array voices."""
