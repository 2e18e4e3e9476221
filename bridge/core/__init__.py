"""What the bridge decides, without I/O, clock or framework (design.md, section 3)."""
