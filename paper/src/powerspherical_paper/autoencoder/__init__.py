"""The paper's variational auto-encoders: `vae` makes the table of scores, `training_time` times training steps."""
