"""Learning a map on some samples and judging it on others."""
