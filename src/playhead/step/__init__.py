"""One forward: from planned integers to sampled tokens."""
