"""CUDA 12 and 13, header by header and library by library, from NVIDIA's wheels."""

load("//third_party/pypi:pypi.bzl", "pypi_files")

# What is not among the members of a wheel that were asked for is an empty target.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["{root}/include/**"]),
    includes = ["{root}/include"],
)

filegroup(
    name = "library",
    srcs = glob(["{root}/lib/*.so*"]),
)

filegroup(
    name = "symbols",
    srcs = glob(["{root}/lib/*.symbols"]),
)
"""

# The names that are defined in the libraries that a plugin opens.
_CUBLAS = ["lib/libcublas.so.*.symbols"]
_CUDART = ["lib/libcudart.so.*.symbols"]
_CUSOLVER = ["lib/libcusolver*.so.*.symbols"]
_NCCL = ["lib/libnccl.so.*.symbols"]

# name: (distribution, version, sha256, root inside the wheel, members)
_H = ["include/*"]
_NCCL_H = ["include/nccl.h"]
_WHEELS = {
    "cuda_runtime_cu12": ("nvidia-cuda-runtime-cu12", "12.8.90", "adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90", "nvidia/cuda_runtime", _H + _CUDART),
    "cuda_crt_cu12": ("nvidia-cuda-nvcc-cu12", "12.8.93", "2d6dc36fb7cb5ac9c0b8825bc13d193c35487a315664007287d0126531238011", "nvidia/cuda_nvcc", _H),
    "cuda_cccl_cu12": ("nvidia-cuda-cccl-cu12", "12.9.27", "37869e17ce2e1ecec6eddf1927cca0f8c34e64fd848d40453df559091e2d7117", "nvidia/cuda_cccl", ["include/nv/*"]),
    "cusolver_cu12": ("nvidia-cusolver-cu12", "11.7.3.90", "4376c11ad263152bd50ea295c05370360776f8c3427b30991df774f9fb26c450", "nvidia/cusolver", _H + _CUSOLVER),
    "cublas_cu12": ("nvidia-cublas-cu12", "12.8.4.1", "8ac4e771d5a348c551b2a426eda6193c19aa630236b418086020df5ba9667142", "nvidia/cublas", _H + _CUBLAS),
    "cusolvermp_cu12": ("nvidia-cusolvermp-cu12", "0.9.1.9318.post1", "1ac09624818662dc657f79329eeab182dbb4de88dc4252d0b132cda651159a81", "nvidia/cu12", _H + _CUSOLVER),
    "nvrtc_cu12": ("nvidia-cuda-nvrtc-cu12", "12.8.93", "a7756528852ef889772a84c6cd89d41dfa74667e24cca16bb31f8f061e3e9994", "nvidia/cuda_nvrtc", ["lib/libnvrtc.so.12", "lib/libnvrtc-builtins.so.12.8"]),
    "nvfatbin_cu12": ("nvidia-nvfatbin-cu12", "12.8.90", "90292d3c8d234dfad7cb6eb5f7d219ad1bd024eb62e07d13a0d244e4b7fa9b61", "nvidia/nvfatbin", ["lib/*.so*"]),
    "nccl_cu12": ("nvidia-nccl-cu12", "2.32.3", "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c", "nvidia/nccl", _NCCL_H + _NCCL),
    "cuda_runtime_cu13": ("nvidia-cuda-runtime", "13.0.96", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548", "nvidia/cu13", _H + _CUDART),
    "cuda_crt_cu13": ("nvidia-cuda-crt", "13.0.88", "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4", "nvidia/cu13", _H),
    "cuda_cccl_cu13": ("nvidia-cuda-cccl", "13.0.85", "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649", "nvidia/cu13", ["include/nv/*"]),
    "cusolver_cu13": ("nvidia-cusolver", "12.0.4.66", "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112", "nvidia/cu13", _H + _CUSOLVER),
    "cublas_cu13": ("nvidia-cublas", "13.1.0.3", "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171", "nvidia/cu13", _H + _CUBLAS),
    "cusolvermp_cu13": ("nvidia-cusolvermp-cu13", "0.9.1.9318.post1", "8b55b0b239255119f78f6def00f414986389d822412771d7f2655f766526c6de", "nvidia/cu13", _H + _CUSOLVER),
    "nvrtc_cu13": ("nvidia-cuda-nvrtc", "13.0.88", "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575", "nvidia/cu13", ["lib/libnvrtc.so.13", "lib/libnvrtc-builtins.so.13.0"]),
    "nvfatbin_cu13": ("nvidia-nvfatbin", "13.0.85", "5e05287b34c02cb6a7c6d9bbb0bbe6da34665fad49878f30e3a722b4747eb676", "nvidia/cu13", ["lib/*.so*"]),
    "nccl_cu13": ("nvidia-nccl-cu13", "2.32.3", "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3", "nvidia/nccl", _NCCL_H + _NCCL),
    # The oldest that the oldest JAX accepts, 0.6.2 for CUDA 12 and 0.7.2 for CUDA 13.
    "cuda_runtime_cu12_oldest": ("nvidia-cuda-runtime-cu12", "12.1.105", "6e258468ddf5796e25f1dc591a31029fa317d97a0a94ed93468fc86301d61e40", "nvidia/cuda_runtime", _CUDART),
    "cusolver_cu12_oldest": ("nvidia-cusolver-cu12", "11.4.5.107", "8a7ec542f0412294b15072fa7dab71d31334014a69f953004ea7a118206fe0dd", "nvidia/cusolver", _CUSOLVER),
    "cublas_cu12_oldest": ("nvidia-cublas-cu12", "12.1.3.1", "ee53ccca76a6fc08fb9701aa95b6ceb242cdaab118c3bb152af4e579af792728", "nvidia/cublas", _CUBLAS),
    "nccl_cu12_oldest": ("nvidia-nccl-cu12", "2.18.1", "1a6c4acefcbebfa6de320f412bf7866de856e786e0462326ba1bac40de0b5e71", "nvidia/nccl", _NCCL),
    "cuda_runtime_cu13_oldest": ("nvidia-cuda-runtime", "13.0.48", "5b54d12087a1abff81a4cbfa6556876e3afea1fc60da2e0816da374619810c89", "nvidia/cu13", _CUDART),
    "cusolver_cu13_oldest": ("nvidia-cusolver", "12.0.3.29", "6f54c2eed5edab54c224dd1852dde80ba76b2b78e6d3ce7344fef5dfc66d16ab", "nvidia/cu13", _CUSOLVER),
    "cublas_cu13_oldest": ("nvidia-cublas", "13.0.0.19", "f6723af2e8e2600a11dc384037d90d9bf93070e346c24ef2e8f9001658c99896", "nvidia/cu13", _CUBLAS),
    "nccl_cu13_oldest": ("nvidia-nccl-cu13", "2.27.7", "b28a524abd8389b76a4a3f133c76a7aaa7005e47fcaa9d9603b90103927a3f93", "nvidia/nccl", _NCCL),
}

# The libraries of the same versions for aarch64, of which the names are looked at.
_AARCH64 = {
    "cublas_cu12": "b86f6dd8935884615a0683b663891d43781b819ac4f2ba2b0c9604676af346d0",
    "cublas_cu13": "c86fc7f7ae36d7528288c5d88098edcb7b02c633d262e7ddbb86b0ad91be5df2",
    "cuda_runtime_cu12": "52bf7bbee900262ffefe5e9d5a2a69a30d97e2bc5bb6cc866688caa976966e3d",
    "cuda_runtime_cu13": "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55",
    "cusolver_cu12": "db9ed69dbef9715071232caa9b69c52ac7de3a95773c2db65bdba85916e4e5c0",
    "cusolver_cu13": "02c2457eaa9e39de20f880f4bd8820e6a1cfb9f9a34f820eb12a155aa5bc92d2",
    "cusolvermp_cu12": "f4be3ec44dbfeecfb2583e230e3f6dd35b16bfd88386591bd36bb4475ca24122",
    "cusolvermp_cu13": "846f5fb1d135cf757d6e3865ea57dd3cc77b70a00e234ced19a3c3b689c0bfb3",
    "nccl_cu12": "061af42ae1044816820e16b872075e243d1ac0656f51860fbc8e106c257aa83a",
    "nccl_cu13": "a5bee92b2f4af218c109f8d221c3c9adcc752b94ae0ffcb0ed5abf9341a7724c",
}

def cuda_repositories():
    """Declares the repositories of CUDA."""
    for name, (distribution, version, sha256, root, members) in _WHEELS.items():
        pypi_files(
            name = name,
            distribution = distribution,
            version = version,
            sha256 = sha256,
            members = [root + "/" + m for m in members],
            build_file_content = _BUILD.format(root = root),
        )
    for name, sha256 in _AARCH64.items():
        distribution, version, _, root, members = _WHEELS[name]
        pypi_files(
            name = name + "_aarch64",
            cpu = "aarch64",
            distribution = distribution,
            version = version,
            sha256 = sha256,
            members = [root + "/" + m for m in members if m.endswith(".symbols")],
            build_file_content = _BUILD.format(root = root),
        )
