"""The trajectory viewer: one self-contained HTML page for a run, a file of trajectories or of recorded dialogues."""
