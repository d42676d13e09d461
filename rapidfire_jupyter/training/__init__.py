"""Training: models, TRL trainers, their coroutine sessions, process-wide context, checkpoints."""
