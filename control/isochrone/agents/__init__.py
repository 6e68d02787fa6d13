"""Agents in other places than the control plane: plan, batches, what is believed of them, and the spool between."""
