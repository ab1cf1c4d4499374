"""Words that people search for, and the section of the site that answers them.

The search finds a section by its text, its heading and these words, which no page shows. Names of
functions need no entry where their reference comes first.
"""

WORDS = {
    "faq.html#which-function-do-i-need": """
        which function, which routine, inverse, inv, solve, linear solve, linear system,
        solver""",
    "faq.html#how-do-i-get-eigenvalues-singular-values-or-a-determinant": """
        eigenvalues, eigenvectors, determinant, log-determinant""",
    "faq.html#how-do-i-make-a-matrix-that-is-too-large": """
        make a matrix, matrix too large, too large for one device""",
    "faq.html#it-is-out-of-memory-what-can-i-do": "out of memory, cuda out of memory",
    "faq.html#how-many-gpus-do-i-need-does-my-matrix-fit": "need, estimate",
    "faq.html#what-does-jaxmg-not-do": """
        sparse, csr, banded, band matrix, toeplitz, circulant, tridiagonal, block diagonal,
        lobpcg, lanczos, arnoldi, eigsh, conjugate gradient, cg, gmres, krylov, iterative,
        preconditioner, nonsymmetric eigenvalues, nonhermitian, unsymmetric, eig, eigvals,
        schur, hessenberg, matrix multiplication, matmul, gemm, matrix product, integer, int8,
        float8, fp8,
        what jaxmg does, limitations, unsupported""",
    "faq.html#is-the-result-reproducible": """
        reproducible, reproducibility, deterministic, determinism, same bits, bitwise,
        random""",
    "faq.html#how-do-i-see-progress-or-profile-a-call": """
        progress, progress bar, tqdm, eta, profiling, profile, profiler, timeline, trace,
        tracing, perfetto, tensorboard, nsight, verbose, logging""",
    "faq.html#how-do-i-save-a-factor": """
        save, save a factor, load, pickle, reload, checkpoint, restore, orbax, serialize,
        disk""",
    "faq.html#why-is-the-result-nan": """
        nan, why nan, inf, infinity, not positive definite, indefinite, singular, status,
        info, error code, cholesky failed""",
    "faq.html#why-does-it-use-one-device-only": "one device, only one device, idle",
    "faq.html#how-do-i-cite-it": """
        cite, citation, citing, bibtex, reference, paper, doi, license, licence, apache""",
    "faq.html#does-it-run-on-amd-gpus-tpus-macos-or-windows": """
        amd, rocm, hip, mi300, tpu, windows, wsl, mac, macos, apple, metal, intel""",
    "faq.html#is-this-the-jaxmg-on-pypi": "pypi",
    "processes.html": """
        multi node, multinode, nodes, cluster, distributed, multiple processes, mpi, nccl,
        infiniband""",
    "processes.html#starting-it": """
        kubernetes, k8s, jobset, slurm, srun, sbatch, openmpi, open mpi, mpirun, mpi4py,
        launcher, launch, torchrun, coordinator""",
    "troubleshooting.html#before-anything-runs": """
        import error, importerror, modulenotfounderror, no plugin, no gpu found, typeerror,
        valueerror""",
    "troubleshooting.html#while-it-runs": "timeout, timed out, rendezvous, error message",
    "troubleshooting.html#it-hangs-on-cpu-devices": "hang, hangs, stuck, freeze, frozen, deadlock",
    "troubleshooting.html#it-ends-with-a-segmentation-fault": """
        segfault, sigsegv, core dumped, crash, crash at exit, exit code 139, abort""",
    "troubleshooting.html#ctrl-c": """
        killed, kill, sigkill, sigterm, sigint, ctrl-c, interrupt, keyboardinterrupt, cancel""",
    "memory.html": "memory, how much memory, gigabytes, workspace, memory usage, footprint",
    "memory.html#how-to-save-memory": """
        oom, memory error, runs out of memory, resource_exhausted, save
        memory, reduce memory, donate""",
    "howto/host_memory.html": """
        host memory, host ram, offload, offloading, larger than gpu, bigger, does not fit,
        doesn't fit, too big, core, pinned_host, pinned, unified, swap""",
    "performance.html": """
        speed, how fast, fast, speedup, benchmark, benchmarks, timing, timings, performance,
        flops, tflops""",
    "performance.html#how-it-scales": """
        how many gpus, number of gpus, scaling, scalability, strong scaling, weak scaling""",
    "performance.html#what-to-choose": "slow, too slow, faster, tuning, tune",
    "performance.html#one-gpu-beside-jax": """
        single gpu, one gpu, 1 gpu, small matrices, small matrix, speed vs jax, versus jax,
        compared, comparison""",
    "performance.html#the-first-call": "compile time, compilation, recompile, first call, warmup",
    "api.html#potrs": "cholesky decomposition, cholesky factorization",
    "api.html#lu": "lu decomposition, lu factorization, pivoting",
    "api.html#qr": "qr decomposition, qr factorization",
    "api.html#syevd": "eigendecomposition",
    "api.html#batches": "batch, batches, batched, batching, vmap, many matrices",
    "api.html#derivatives": """
        gradient, gradients, grad, derivative, derivatives, autodiff, differentiable,
        hessian, jvp, vjp, jacobian, backward, backprop""",
    "howto/least_squares.html": """
        least squares, lstsq, linear regression, regression, overdetermined, rectangular,
        normal equations""",
    "howto/least_squares.html#ridge": "ridge, regularization, tikhonov, damp",
    "howto/jax_linalg.html#functions": """
        pseudo inverse, pseudoinverse, pinv, moore-penrose, rank deficient, rank, null
        space, orth, inverse of a matrix, matrix square root, square root of a matrix,
        sqrtm, expm, logm, matrix exponential, matrix logarithm, matrix function, matrix
        functions, funm, numpy, scipy, drop-in""",
    "howto/jax_linalg.html#singular-values": """
        svd, singular values, singular value decomposition, svdvals, gesvd, pca, principal
        components, low rank, truncated, randomized svd""",
    "howto/jax_linalg.html#which-triangle-is-read": """
        symmetric, hermitian, symmetrize, lower triangle, which triangle, upper triangle,
        lower, upper, uplo, tril, triu""",
    "howto/optimizers.html": """
        optimizer, optimizers, optax, flax, equinox, nnx, pytree, pytrees, tree, k-fac, kfac""",
    "howto/optimizers.html#muon-and-shampoo": """
        polar, orthogonalize, orthogonalization, muon, shampoo, newton-schulz, polar
        express, inverse root""",
    "howto/soap.html": "soap, soap optimizer",
    "precision.html": """
        complex, complex64, complex128, float16, half precision, bfloat16, bf16, fp16,
        float32, float64, fp64, fp32, double, double precision, single precision, x64,
        enable_x64, accuracy, accurate, dtype, dtypes, tf32, tensor cores, mixed precision""",
    "precision.html#refine": "refine, refinement, iterative refinement",
    "howto/sharding.html": """
        sharding, sharded, shard, mesh, in_specs, matrix_specs, partitionspec, explicit
        axes, explicit sharding, jit, namedsharding, shard_map, layout""",
    "howto/sharding.html#make-a-in-pieces": """
        memmap, load from a file, make a in pieces, hdf5, zarr, npy""",
    "howto/tile_width.html": "t_a, tile width, tile size, block size",
    "howto/gaussian_process.html": """
        gaussian process, gaussian processes, gp, kernel, likelihood, marginal likelihood,
        covariance, kriging, bayesian""",
    "howto/random_field.html": "random field, fft, power spectrum, cosmology, astronomy",
    "howto/variational_monte_carlo.html": """
        vmc, variational monte carlo, minsr, stochastic reconfiguration, sampling, quantum,
        schrodinger""",
    "clients.html#tinygp": "tinygp",
    "clients.html#numpyro": "numpyro, pyro, nuts, mcmc, bayesian inference",
    "clients.html#gpjax": "gpjax",
    "clients.html#lineax": "lineax",
    "clients.html#optimistix-and-diffrax": """
        optimistix, diffrax, root finding, gauss-newton, ode, stiff""",
    "clients.html#quantax": "quantax",
    "clients.html#joblib-and-dask": "joblib, dask, ray, worker, workers, parallel",
    "howto/variational_monte_carlo.html#with-netket": "netket",
    "howto/scattering.html": "scattering, boundary element, integral equation",
    "howto/hartree_fock.html": "generalized eigenvalue problem, hartree-fock, overlap matrix, dft",
    "howto/cpu_devices.html": "cpu, cpu devices, xla_flags, fake devices, without gpu",
    "migration.html": """
        1.4, 1.4.1, 0.0, 1.x, jaxmg 1.4, migration, migrate, migrating, upgrade, porting""",
    "cuda.html#backends": "cusolver, cusolvermg, cusolvermp, backend, magma, slate, elpa",
    "install.html": "install, installation, pip, wheel, setup, requirements",
    "install.html#slurm": "offline, no network, no internet, air-gapped, login node",
    "install.html#containers": "docker, container, apptainer",
    "install.html#conda": "conda, mamba, conda-forge",
    "install.html#size-of-the-wheels": "size of the wheels, download size",
    "install.html#which-gpu": "a100, h100, h200, b200, v100, rtx, which gpu, compute capability",
    "install.html#what-has-been-tested": """
        version, versions, tested, supported, python 3.14, jax version, compatibility""",
    "start.html": "laptop, tutorial, getting started, hello world, quickstart",
    "examples.html": "examples, example, demo, colab, jupyter",
    "gallery.html": "gallery, pictures, showcase, applications, use cases",
    "changelog.html": "changelog, changes, release notes, what's new, news, releases",
    "reference/linalg_values.html#jaxmg.linalg.cond": """
        condition number, cond, ill-conditioned, conditioning""",
    "reference/factors.html#jaxmg.LUFactor.rcond": "rcond, reciprocal condition number",
    "security.html": """
        security, vulnerability, token, port, ports, secret, firewall, authentication""",
    "glossary.html": "glossary, rank, terms",
    "contributing.html": """
        contribute, contributing, build, building from source, from source, pull request,
        add a routine, new routine, developer""",
}
