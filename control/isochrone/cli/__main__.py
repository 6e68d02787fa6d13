"""`python -m isochrone.cli`: the command without its console script."""

from isochrone.cli import main

main()
