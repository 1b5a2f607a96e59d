"""`python -m ocaffe`."""
import sys

from ocaffe.cli import main

sys.exit(main())
