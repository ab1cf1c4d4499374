// The Python interface that every plugin's extension module has, on all platforms.
#ifndef JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
#define JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "xla_ffi/comm/interrupts.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/rendezvous/shared_rendezvous.h"
#include "xla_ffi/device/host_ranges.h"
#include "xla_ffi/device/progress.h"
#include "xla_ffi/device/tunings.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/offload/chunks.h"
#include "xla_ffi/handlers/offload/registry.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/plan.h"
#include "xla_ffi/handlers/platform/platform.h"

namespace jaxmg {

inline pybind11::dict Registrations() {
  pybind11::dict registrations;
  for (const Routine* routine : kRoutines) {
    pybind11::dict stages;
    if (routine->instantiate != nullptr) {
      stages["instantiate"] = pybind11::capsule(reinterpret_cast<void*>(routine->instantiate));
    }
    stages["execute"] = pybind11::capsule(reinterpret_cast<void*>(routine->execute));
    registrations[pybind11::str(std::string("jaxmg_") + routine->name)] = stages;
  }
  return registrations;
}

inline pybind11::dict PlanOf(const std::string& routine, const std::string& backend,
                             const std::string& dtype, int64_t m, int64_t n, int64_t block,
                             int ranks, int64_t tile, int64_t nrhs, bool vectors,
                             const std::string& platform, int64_t products) {
  PlanAnswer answer;
  const Status status = AnswerPlan(
      {routine, backend, dtype, m, n, block, ranks, tile, nrhs, vectors, platform, products},
      &answer);
  if (!status.ok()) throw std::invalid_argument(status.message());
  pybind11::list bytes;
  for (int64_t value : answer.bytes) bytes.append(value);
  pybind11::dict plan;
  plan["tile"] = answer.tile;
  plan["overflow_rows"] = answer.overflow_rows;
  plan["gathered"] = answer.gathered;
  plan["bytes"] = bytes;
  plan["solver"] = answer.solver;
  return plan;
}

inline void Raise(const Status& status) {
  if (status.code() == Code::kInvalidArgument) throw std::invalid_argument(status.message());
  if (!status.ok()) throw std::runtime_error(status.message());
}

inline double Positive(double seconds) {
  if (!(seconds > 0)) throw std::invalid_argument("the time limit must be positive");
  return seconds;
}

// Defines the functions by which processes of one job find each other;
// jaxmg/_processes/rendezvous.py explains when they are called.
inline void DefineProcesses(pybind11::module_& module) {
  module.def(
      "process_address",
      [](const std::string& version) {
        std::string address;
        Raise(Hub::Instance().Listen(version, SharedRendezvousSink(), &address));
        return address;
      },
      pybind11::arg("version"),
      "Where other processes reach this one: a text for the key-value store of the job. Listens "
      "at a Unix socket from the first call on.");
  module.def(
      "connect_processes",
      [](int me, const pybind11::dict& addresses, const std::string& key) {
        std::map<int, std::string> known;
        for (const auto& [process, address] : addresses) {
          known[process.cast<int>()] = address.cast<std::string>();
        }
        Raise(Hub::Instance().Connect(me, known, key));
      },
      pybind11::arg("me"), pybind11::arg("addresses"), pybind11::arg("key"),
      "Says which process has which address, in the job whose processes alone know the key. May be "
      "called again with more. Begins to connect, and doesn't wait.");
  module.def(
      "tcp_between",
      [](const std::string& lower, const std::string& higher) {
        ProcessAddress one, other;
        Raise(ParseAddress(lower, &one));
        Raise(ParseAddress(higher, &other));
        return TcpBetween(one, other);
      },
      pybind11::arg("lower"), pybind11::arg("higher"),
      "By which interfaces of the process of the higher index the one of the lower index reaches "
      "it: 'loopback', 'any', or '' where it needs no TCP.");
  module.def(
      "listen_over_tcp",
      [](const std::string& scope) {
        std::string lines;
        const TcpScope as = scope == "any" ? TcpScope::kAny : TcpScope::kLoopback;
        Raise(Hub::Instance().ListenOverTcp(as, &lines));
        return lines;
      },
      pybind11::arg("scope"),
      "Listens at those interfaces from the first call for them on; what to append to this "
      "process's address for those that need it.");
  module.def(
      "peer_timeout", [] { return Hub::Instance().peer_timeout().count(); },
      "Seconds of silence after which another process is lost.");
  module.def(
      "set_peer_timeout",
      [](double seconds) { Hub::Instance().set_peer_timeout(Seconds(Positive(seconds))); },
      pybind11::arg("seconds"));
  module.def(
      "connections",
      [] {
        pybind11::list all;
        for (const ConnectionInfo& info : Hub::Instance().Connections()) {
          pybind11::dict one;
          one["process"] = info.process;
          one["host"] = info.host;
          one["pid"] = info.pid;
          one["transport"] = info.transport;
          one["state"] = info.state;
          all.append(one);
        }
        return all;
      },
      "The processes that this one knows: index, host, pid, transport, and whether they are "
      "connected, connecting, or lost and why.");
}

// The Python function that returns whether SIGINT is to interrupt calls. Never freed: the watcher's
// thread may use it while the process exits.
inline pybind11::object*& InterruptsWanted() {
  static pybind11::object* function = nullptr;
  return function;
}

inline bool AskWhetherInterruptsAreWanted() {
#if PY_VERSION_HEX >= 0x030d0000
  if (Py_IsFinalizing()) return false;
#else
  if (_Py_IsFinalizing()) return false;
#endif
  const pybind11::gil_scoped_acquire gil;
  try {
    return (*InterruptsWanted())().cast<bool>();
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("jaxmg's watcher of SIGINT");
  } catch (const std::exception&) {
  }
  return false;
}

inline void DefineInterrupts(pybind11::module_& module) {
  module.def(
      "watch_interrupts",
      [](const pybind11::function& wanted) {
        if (InterruptsWanted() == nullptr) InterruptsWanted() = new pybind11::object(wanted);
        return WatchInterrupts(&AskWhetherInterruptsAreWanted);
      },
      pybind11::arg("wanted"),
      "Has SIGINT end the calls that are under way if `wanted`, called for each signal on a thread "
      "of its own, returns True. Returns whether it is watched: not if no function handles it.");
}

inline void DefineProgress(pybind11::module_& module) {
  // Both wait for other threads, which may need the GIL.
  module.def("set_progress", &SetProgressWanted, pybind11::arg("wanted"),
             pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Whether calls that begin from now on record their progress.");
  module.def(
      "progress",
      [] {
        const std::vector<ProgressSnapshot> taken = [] {
          const pybind11::gil_scoped_release released;
          return TakeProgress();
        }();
        pybind11::list all;
        for (const ProgressSnapshot& each : taken) {
          pybind11::dict one;
          one["call"] = each.call;
          one["routine"] = each.of.routine;
          one["n"] = each.of.n;
          one["devices"] = each.of.ranks;
          one["stage"] = each.stage;
          one["step"] = each.step;
          one["steps"] = each.steps;
          one["fraction"] = each.fraction;
          one["seconds"] = each.seconds;
          one["ended"] = each.ended;
          one["ok"] = each.ok;
          all.append(one);
        }
        return all;
      },
      "The calls under way whose first rank is here, and those that have ended since: what they "
      "do, the share of their operations that the device has done (negative: unknown), and the "
      "seconds that it took.");
}

// Reads (address, ld) of each block row.
inline std::vector<HostBlock> HostBlocks(const pybind11::handle& blocks, bool pageable) {
  std::vector<HostBlock> all;
  for (const pybind11::handle& each : blocks) {
    const auto block = each.cast<std::pair<uint64_t, int64_t>>();
    all.push_back({reinterpret_cast<void*>(block.first), block.second, pageable});
  }
  return all;
}

// Whether the spec names the key among its pageable memory.
inline bool IsPageable(const pybind11::dict& spec, const char* key) {
  return spec.contains("pageable") && spec["pageable"].contains(key);
}

inline int32_t OpenHost(const pybind11::dict& spec) {
  HostMatrix matrix;
  matrix.dtype = spec["dtype"].cast<std::string>();
  matrix.shape = {
      spec["n"].cast<int64_t>(),     spec["nrhs"].cast<int64_t>(),
      spec["width"].cast<int64_t>(), spec["tile"].cast<int64_t>(),
      spec["ranks"].cast<int>(),     spec.contains("whole") && spec["whole"].cast<bool>()};
  matrix.source = HostBlocks(spec["source"], IsPageable(spec, "source"));
  matrix.factor = HostBlocks(spec["factor"], IsPageable(spec, "factor"));
  if (spec.contains("local")) {
    matrix.local = spec["local"].cast<std::vector<int>>();
    matrix.shape.spread = !matrix.local.empty();
  }
  if (spec.contains("ring")) {
    const auto [address, bytes, threads] = spec["ring"].cast<std::tuple<uint64_t, size_t, int>>();
    matrix.ring = {reinterpret_cast<void*>(address), bytes, threads};
  }
  int32_t id = 0;
  Raise(OpenHostMatrix(std::move(matrix), &id));
  return id;
}

inline pybind11::dict HostPlanOf(const std::string& dtype, int64_t n, int64_t nrhs, int ranks,
                                 const std::string& platform, int64_t budget_bytes, int64_t width,
                                 int64_t products, bool whole) {
  HostPlanAnswer answer;
  Raise(AnswerHostPlan({dtype, n, nrhs, ranks, platform, budget_bytes, width, products, whole},
                       &answer));
  pybind11::dict plan;
  plan["width"] = answer.shape.width;
  plan["tile"] = answer.shape.tile;
  plan["chunk"] = answer.chunk;
  plan["bytes"] = answer.bytes;
  plan["cache"] = answer.cache;
  return plan;
}

// Reads the pieces of each chunk: (buffer, offset and pitch in it, address, pitch, height,
// columns).
inline int32_t OpenChunks(const std::array<size_t, kHostRowBuffers>& bytes,
                          const pybind11::list& chunks) {
  using Numbers = std::tuple<int, size_t, size_t, uint64_t, size_t, size_t, size_t>;
  HostChunks found = {bytes, {}};
  for (const pybind11::handle& chunk : chunks) {
    std::vector<HostPiece>& pieces = found.chunks.emplace_back();
    for (const pybind11::handle& each : chunk) {
      const auto [buffer, offset, pitch, address, from_pitch, height, columns] =
          each.cast<Numbers>();
      pieces.push_back(
          {buffer, offset, pitch, {reinterpret_cast<void*>(address), from_pitch, height, columns}});
    }
  }
  int32_t id = 0;
  Raise(OpenHostChunks(std::move(found), &id));
  return id;
}

// Defines the functions for matrices in host memory (engine/offload).
inline void DefineHostMemory(pybind11::module_& module) {
  using Released = pybind11::call_guard<pybind11::gil_scoped_release>;
  module.def("host_open", &OpenHost, pybind11::arg("spec"),
             "Makes a matrix in host memory known to calls, and returns its id. The memory must "
             "stay until host_close.");
  module.def(
      "host_close", [](int32_t id) { Raise(CloseHostMatrix(id)); }, pybind11::arg("id"), Released(),
      "Waits for calls that use the matrix.");
  module.def("host_open_chunks", &OpenChunks, pybind11::arg("bytes"), pybind11::arg("chunks"),
             "As host_open, of a tall matrix in chunks of rows: the bytes of the two buffers, and "
             "for each chunk its pieces, (buffer, offset, pitch, address, pitch, height, columns) "
             "in bytes.");
  module.def(
      "host_close_chunks", [](int32_t id) { Raise(CloseHostChunks(id)); }, pybind11::arg("id"),
      Released());
  module.def(
      "host_rows_bytes",
      [](const std::string& dtype, int64_t n, int64_t rows, int64_t nrhs, bool with_b,
         const std::string& platform) {
        int64_t bytes = 0;
        Raise(HostRowsBytes(dtype, {n, rows, 0, nrhs, with_b, false}, platform, &bytes));
        return bytes;
      },
      pybind11::arg("dtype"), pybind11::arg("n"), pybind11::arg("rows"), pybind11::arg("nrhs"),
      pybind11::arg("with_b"), pybind11::arg("platform"),
      "The bytes of workspace of a call of host_rows on a device.");
  module.def("host_plan", &HostPlanOf, pybind11::arg("dtype"), pybind11::arg("n"),
             pybind11::arg("nrhs"), pybind11::arg("ranks"), pybind11::arg("platform"),
             pybind11::arg("budget_bytes"), pybind11::arg("width") = 0,
             pybind11::arg("products") = static_cast<int64_t>(Precision::kChosen),
             pybind11::arg("whole") = false,
             "The width of block columns and of tiles, the columns of a streamed panel, and the "
             "bytes of device memory on a device, for the widest block columns within a budget, or "
             "for those of a given width; and the elements of the factor that fit beside these.");
  module.def(
      "pin",
      [](uint64_t address, size_t bytes) { Raise(Pin(reinterpret_cast<void*>(address), bytes)); },
      pybind11::arg("address"), pybind11::arg("bytes"), Released());
  module.def(
      "unpin", [](uint64_t address) { Raise(Unpin(reinterpret_cast<void*>(address))); },
      pybind11::arg("address"), Released());
  module.def(
      "is_pinned",
      [](uint64_t address) {
        bool pinned = false;
        Raise(IsPinned(reinterpret_cast<void*>(address), &pinned));
        return pinned;
      },
      pybind11::arg("address"), "Whether devices copy from and to this memory fast.");
  module.def(
      "touch",
      [](uint64_t address, size_t bytes, int threads) {
        Raise(TouchPages(reinterpret_cast<void*>(address), bytes, threads));
      },
      pybind11::arg("address"), pybind11::arg("bytes"), pybind11::arg("threads"), Released(),
      "Sets one byte of each page to 0.");
  module.def(
      "host_copy",
      [](uint64_t target, uint64_t source, size_t rows, size_t row_bytes, size_t target_pitch,
         size_t source_pitch, int threads) {
        Raise(CopyOnHost({reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), rows,
                          row_bytes, target_pitch, source_pitch},
                         threads));
      },
      pybind11::arg("target"), pybind11::arg("source"), pybind11::arg("rows"),
      pybind11::arg("row_bytes"), pybind11::arg("target_pitch"), pybind11::arg("source_pitch"),
      pybind11::arg("threads"), Released());
}

inline void DefineCommon(pybind11::module_& module) {
  ReadOptions();
  module.def("registrations", &Registrations,
             "XLA FFI handlers by the name under which to register them, each by its stages.");
  module.def(
      "rendezvous_timeout", [] { return RendezvousTimeout().count(); },
      "Seconds that a rank waits for the other ranks of its call.");
  module.def(
      "set_rendezvous_timeout",
      [](double seconds) { SetRendezvousTimeout(Seconds(Positive(seconds))); },
      pybind11::arg("seconds"));
  module.def(
      "backends",
      [](const std::string& routine) {
        pybind11::list names;
        if (const Routine* row = FindRoutine(routine)) {
          for (const char* name : row->backends) names.append(name);
        }
        return names;
      },
      pybind11::arg("routine"), "The backends that serve a routine, the preferred one first.");
  module.def("plan", &PlanOf, pybind11::arg("routine"), pybind11::arg("backend"),
             pybind11::arg("dtype"), pybind11::arg("m"), pybind11::arg("n"), pybind11::arg("block"),
             pybind11::arg("ranks"), pybind11::arg("tile") = 0, pybind11::arg("nrhs") = 1,
             pybind11::arg("vectors") = true, pybind11::arg("platform") = "",
             pybind11::arg("products") = static_cast<int64_t>(Precision::kChosen),
             "The tile width of a call on an m x n matrix, the rows of a factor's overflow tile, "
             "whether one rank does all the work, and by rank the bytes of workspace and results "
             "beyond A. `block`: the rows of A on each rank.");
  module.def(
      "is_whole_qr", &OneRankFactors, pybind11::arg("n"), pybind11::arg("block"),
      pybind11::arg("ranks"),
      "Whether one rank computes the QR of a matrix of n columns, of which each rank has `block` "
      "rows, for all by the device's library.");
  module.def("whole_svd_order", &WholeSvdOrder,
             "The order up to which one rank computes a singular value decomposition for all by "
             "the device's library.");
  module.def("staged_eigen_order", &StagedEigenOrder,
             "The order from which the engine's stages solve an eigenproblem of any dtype on any "
             "ranks, with eigenvectors or without; 0: there is none.");
  module.def(
      "set_whole_matrices", [](bool wanted) { WholeMatricesSetting() = wanted; },
      pybind11::arg("wanted"),
      "Whether one rank of several CPU devices does for all what LAPACK does faster alone, as it "
      "does by default.");
  module.def(
      "set_brief_wait",
      [](double seconds, double spin) { SetBriefWait(Seconds(seconds), Seconds(spin)); },
      pybind11::arg("seconds"), pybind11::arg("spin") = kBriefSpin.count(),
      "How long a rank of several CPU devices waits for the others on XLA's thread before it "
      "continues on a thread of its own, 1 ms unless set; and how long it polls before it sleeps.");
  module.def(
      "set_eigensolver",
      [](const std::string& name) {
        if (SetEigensolver(name)) return;
        throw std::invalid_argument("the eigensolver must be auto, one or all; got '" + name + "'");
      },
      pybind11::arg("name"),
      "Which ranks solve an eigenproblem from now on: \"one\" by LAPACK or cuSOLVER, \"all\", or "
      "\"auto\".");
  DefineProcesses(module);
  DefineInterrupts(module);
  DefineProgress(module);
  DefineHostMemory(module);
  module.def("compiler", [] { return std::string(__VERSION__); });
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
