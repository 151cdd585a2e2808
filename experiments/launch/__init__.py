"""How the runs of a comparison are started: in this process, in several, or as tasks of Ray."""
