"""What is outside of this process: environments on other machines, servers that sample."""
