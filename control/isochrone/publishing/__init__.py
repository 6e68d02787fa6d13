"""Map -> Workers KV: plan, guard, apply, read back, roll back."""
