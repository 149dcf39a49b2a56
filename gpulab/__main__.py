"""Run the command line as ``python -m gpulab``, where ``gpulab`` itself is not on the path."""

from gpulab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
