"""`%rapidfire` and `%%rapidfire`: being written."""
