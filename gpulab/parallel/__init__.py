"""Several processes on one model: clusters of real ranks, their collectives, and the strategies that split the work."""

__all__: list[str] = []
