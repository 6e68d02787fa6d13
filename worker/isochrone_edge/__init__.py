"""What runs at the edge. Standard library only; nothing here knows the workers SDK."""
