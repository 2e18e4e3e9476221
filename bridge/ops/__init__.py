"""What an operator talks to: the control socket."""
