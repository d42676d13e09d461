"""What a person sees and clicks: the panel, its static twin, figures and reports."""
