"""The paper's experiment with variational auto-encoders: `vae` makes the table, `training_time` times steps."""
