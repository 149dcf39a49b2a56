"""The exceptions that gpulab raises on purpose."""

from gpulab import errors


def test_every_error_is_a_gpulab_error_and_keeps_its_built_in_parent():
    """One parent catches all of ours; each also is what older code expects."""
    parents = {"InputError": ValueError, "DeviceError": RuntimeError, "OutOfMemoryError": MemoryError, "CopyRequiredError": ValueError}
    for name, parent in parents.items():
        assert issubclass(getattr(errors, name), parent)
    ours = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert all(issubclass(c, errors.GpulabError) for c in ours)
