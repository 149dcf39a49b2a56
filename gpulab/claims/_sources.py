"""Where the claims were published."""

from __future__ import annotations

from gpulab.claims.results import Source

_NVIDIA = "NVIDIA"
TUNING = Source(
    "tuning", "PyTorch performance tuning guide", "S. Migacz", None,
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)  # fmt: skip
KUHN = Source(
    "kuhn", "Faster Deep Learning Training with PyTorch, a 2021 Guide", "L. Kuhn", 2021,
    "https://efficientdl.com/faster-deep-learning-in-pytorch-a-guide/",
)  # fmt: skip
CUDA_NOTES = Source(
    "cuda-notes",
    "PyTorch: CUDA semantics",
    "PyTorch",
    None,
    "https://docs.pytorch.org/docs/stable/notes/cuda.html",
)
AUTOGRAD = Source(
    "autograd",
    "PyTorch: autograd mechanics",
    "PyTorch",
    None,
    "https://docs.pytorch.org/docs/stable/notes/autograd.html",
)
ADAM = Source(
    "adam",
    "PyTorch: Adam",
    "PyTorch",
    None,
    "https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html",
)
TENSOR = Source(
    "tensor",
    "PyTorch: torch.tensor",
    "PyTorch",
    None,
    "https://docs.pytorch.org/docs/stable/generated/torch.tensor.html",
)
BENCHMARK = Source(
    "benchmark",
    "PyTorch benchmark recipe",
    "PyTorch",
    None,
    "https://docs.pytorch.org/tutorials/recipes/recipes/benchmark.html",
)
QUANTIZATION = Source(
    "quantization",
    "PyTorch: quantization",
    "PyTorch",
    None,
    "https://docs.pytorch.org/docs/stable/quantization.html",
)
CHANNELS_LAST = Source(
    "channels-last", "Channels Last Memory Format in PyTorch", "V. Fedyunin", None,
    "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
)  # fmt: skip
PYTORCH_2 = Source(
    "pytorch-2", "PyTorch 2.0", "PyTorch", 2023, "https://pytorch.org/get-started/pytorch-2.0/"
)
INTEL = Source(
    "intel", "Intel Extension for PyTorch: Channels Last", "Intel", None,
    "https://intel.github.io/intel-extension-for-pytorch/cpu/latest/tutorials/features/nhwc.html",
)  # fmt: skip
BEST_PRACTICES = Source(
    "best-practices",
    "CUDA C++ Best Practices Guide",
    _NVIDIA,
    None,
    "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/",
)
MATMUL_GUIDE = Source(
    "matmul-guide", "Matrix Multiplication Background User's Guide", _NVIDIA, None,
    "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
)  # fmt: skip
MEMORY_GUIDE = Source(
    "memory-guide", "Memory-Limited Layers User's Guide", _NVIDIA, None,
    "https://docs.nvidia.com/deeplearning/performance/dl-performance-memory-limited/",
)  # fmt: skip
AMPERE = Source(
    "ampere",
    "NVIDIA A100 Tensor Core GPU Architecture",
    _NVIDIA,
    2020,
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
)
HOPPER = Source(
    "hopper",
    "NVIDIA H100 Tensor Core GPU Architecture",
    _NVIDIA,
    2022,
    "https://resources.nvidia.com/en-us-tensor-core",
)
BATCHED = Source(
    "batched", "Pro Tip: cuBLAS Strided Batched Matrix Multiply", "C. Cecka", 2017,
    "https://developer.nvidia.com/blog/cublas-strided-batched-matrix-multiply/",
)  # fmt: skip
REDUCTION = Source(
    "reduction", "Optimizing Parallel Reduction in CUDA", "M. Harris", 2007,
    "https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf",
)  # fmt: skip
TRANSPOSE = Source(
    "transpose", "An Efficient Matrix Transpose in CUDA C/C++", "M. Harris", 2013,
    "https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/",
)  # fmt: skip
BOEHM = Source(
    "boehm", "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance", "S. Boehm", 2022,
    "https://siboehm.com/articles/22/CUDA-MMM",
)  # fmt: skip
MIXED = Source(
    "mixed",
    "Mixed Precision Training",
    "P. Micikevicius et al.",
    2018,
    "https://arxiv.org/abs/1710.03740",
)
BABOULIN = Source(
    "baboulin",
    "Accelerating Scientific Computations with Mixed Precision Algorithms",
    "M. Baboulin et al.",
    2009,
    "https://arxiv.org/abs/0808.2794",
)
CHECKPOINTS = Source(
    "checkpoints",
    "Training Deep Nets with Sublinear Memory Cost",
    "T. Chen et al.",
    2016,
    "https://arxiv.org/abs/1604.06174",
)
DEEP_COMPRESSION = Source(
    "deep-compression",
    "Deep Compression",
    "S. Han et al.",
    2016,
    "https://arxiv.org/abs/1510.00149",
)
SHUFFLENET = Source(
    "shufflenet",
    "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design",
    "N. Ma et al.",
    2018,
    "https://arxiv.org/abs/1807.11164",
)
DEBUNKING = Source(
    "debunking",
    "Debunking the 100X GPU vs. CPU Myth",
    "V. W. Lee et al.",
    2010,
    "https://doi.org/10.1145/1815961.1816021",
)
DDP = Source(
    "ddp",
    "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    "S. Li et al.",
    2020,
    "https://arxiv.org/abs/2006.15704",
)
