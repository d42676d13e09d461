"""Data sets: the plan that cuts them into chunks, and the data the demo trains on."""
