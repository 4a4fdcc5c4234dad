"""Run single rollouts, groups and evaluations; score rollouts again; export them."""
