"""A fleet on virtual time: the real router and policy, the scheduler's arithmetic, the costs of `scale/cost.py`."""
