"""Pure arithmetic about processors, nothing measured: what a launch can occupy, what an access touches, what a roof allows."""

from gpulab.models._requests import sectors_per_request, shared_wavefronts

__all__ = ["sectors_per_request", "shared_wavefronts"]
