"""Files that are whole or not there: drafts that are moved into place, and checkpoints."""
