"""The pure heart: values, outcomes, decisions and the rules of a training run's life."""
