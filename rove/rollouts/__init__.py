"""Run rollouts: one, a group, an evaluation; score them again; export them."""
