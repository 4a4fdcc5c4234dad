"""The stages of training (evaluation, new model, data, SFT, RL) and their pipeline. Settings and results are typed."""
