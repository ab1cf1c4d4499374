// Runs a part of a test in several processes, which are forked from this one and connected with
// each other as the processes of a job are. This one has to have no threads then.
#ifndef JAXMG_TESTS_CC_PROCESSES_H_
#define JAXMG_TESTS_CC_PROCESSES_H_

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/ranks.h"
#include "tests/cc/testing.h"
#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/segments.h"
#include "xla_ffi/comm/processes/shared_rendezvous.h"

namespace jaxmg::testing {

struct JobOptions {
  std::string job = "the only job";
  std::string version = "1";
  Transport transport = Transport::kAuto;
  Seconds peer_timeout = std::chrono::seconds(20);
  int first = 0;  // the index of the first process
  // For what one process may be: another version, another job.
  std::function<void(int process, JobOptions*)> change = nullptr;
  // Runs when a process has the others' addresses, and before it tells its hub.
  std::function<void(int process, std::map<int, std::string>*)> before = nullptr;
};

// What is written in full or not at all; a process whose parent has gone ends by SIGPIPE.
inline void WriteText(int fd, const std::string& text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  std::string all(reinterpret_cast<const char*>(&size), sizeof(size));
  all += text;
  for (size_t done = 0; done < all.size();) {
    const ssize_t count = write(fd, all.data() + done, all.size() - done);
    if (count <= 0) return;
    done += static_cast<size_t>(count);
  }
}

inline bool ReadBytes(int fd, char* to, size_t size, int ms) {
  while (size > 0) {
    pollfd wait = {fd, POLLIN, 0};
    if (poll(&wait, 1, ms) <= 0) return false;
    const ssize_t count = read(fd, to, size);
    if (count <= 0) return false;
    to += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

inline bool ReadText(int fd, std::string* text, int ms) {
  uint32_t size = 0;
  if (!ReadBytes(fd, reinterpret_cast<char*>(&size), sizeof(size), ms)) return false;
  text->resize(size);
  return ReadBytes(fd, text->data(), size, ms);
}

// Each process's part; what it returns comes back to the test.
using Part = std::function<std::string(int process)>;

// The texts that the parts return, empty where a process ended before. Processes that are not
// through within a minute are killed, and fail the test unless their index is in `lost`; so are
// those of `lost` once the others are through.
inline std::vector<std::string> RunProcesses(int count, const Part& part,
                                             const JobOptions& options = {},
                                             const std::vector<int>& lost = {}) {
  struct Child {
    pid_t pid;
    int to, from;  // pipes
  };
  std::vector<Child> children;
  for (int i = 0; i < count; ++i) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) std::abort();
    const pid_t pid = fork();
    if (pid == 0) {
      for (const Child& other : children) {
        close(other.to);
        close(other.from);
      }
      close(down[1]);
      close(up[0]);
      alarm(120);
      const int before = Failures();
      const int process = options.first + i;
      JobOptions mine = options;
      if (options.change) options.change(process, &mine);
      Hub& hub = Hub::Instance();
      hub.set_peer_timeout(mine.peer_timeout);
      hub.set_transport(mine.transport);
      std::string address, others;
      const Status listening = hub.Listen(mine.version, SharedRendezvousSink(), &address);
      EXPECT(listening.ok()) << listening.message();
      if (mine.transport == Transport::kTcp) {
        std::string lines;
        const Status over_tcp = hub.ListenOverTcp(TcpScope::kLoopback, &lines);
        EXPECT(over_tcp.ok()) << over_tcp.message();
        address += lines;
      }
      WriteText(up[1], address);
      std::map<int, std::string> addresses;
      for (int j = 0; j < count && ReadText(down[0], &others, 60000); ++j) {
        addresses[options.first + j] = others;
      }
      if (mine.before) mine.before(process, &addresses);
      const Status connected = hub.Connect(process, addresses, mine.job);
      EXPECT(connected.ok()) << connected.message();
      const std::string result = part(process);
      WriteText(up[1], result);
      // Others may still read what was sent; nobody waits for this process's static objects.
      std::string go;
      ReadText(down[0], &go, 60000);
      std::_Exit(Failures() == before ? 0 : 1);
    }
    close(down[0]);
    close(up[1]);
    children.push_back({pid, down[1], up[0]});
  }
  std::vector<std::string> addresses(count), results(count);
  for (int i = 0; i < count; ++i) EXPECT(ReadText(children[i].from, &addresses[i], 60000));
  for (const Child& child : children) {
    for (const std::string& address : addresses) WriteText(child.to, address);
  }
  auto is_lost = [&](int i) {
    for (const int process : lost) {
      if (process == options.first + i) return true;
    }
    return false;
  };
  for (int i = 0; i < count; ++i) {
    if (is_lost(i)) continue;
    const bool through = ReadText(children[i].from, &results[i], 60000);
    EXPECT(through) << "process " << options.first + i << " is not through";
    if (!through) kill(children[i].pid, SIGKILL);
  }
  for (int i = 0; i < count; ++i) {
    if (is_lost(i)) {
      kill(children[i].pid, SIGKILL);
    } else {
      WriteText(children[i].to, "go");
    }
    int status = 0;
    waitpid(children[i].pid, &status, 0);
    close(children[i].to);
    close(children[i].from);
    EXPECT(is_lost(i) || status == 0)
        << "process " << options.first + i << " ended with " << status;
  }
  return results;
}

// A call of ranks that are dealt to processes, as a handler's instantiate stage makes it.
inline std::shared_ptr<const SharedCallSite> SiteOn(int ranks, const std::vector<int>& processes,
                                                    const std::string& text = "potrs (n 8)") {
  return NewSharedCallSite(text.substr(0, text.find(' ')), text, ranks, processes);
}

struct RankOutcome {
  int group, rank;
  Status status;
};

// What the ranks of a process work on.
struct Devices {
  std::function<std::unique_ptr<Device>()> make = NewSharingHostDevice;
  bool on_host = true;  // blocks pass through sockets from where they lie
  bool many = false;    // each rank has its own
  int64_t ordinal = 0;  // of the device of all ranks, where not each has its own
};

// The ranks of this process in a call, each on a thread, as the handlers run them.
inline std::vector<RankOutcome> RunRanksHere(const std::shared_ptr<const SharedCallSite>& site,
                                             int64_t run, const RankProgram& program,
                                             Seconds limit = kPatience,
                                             const std::string& block = "float64",
                                             const Devices& devices = {}) {
  const int me = Hub::Instance().me();
  std::vector<RankOutcome> outcomes;
  for (int group = 0; group < site->groups(); ++group) {
    for (int rank = 0; rank < site->ranks; ++rank) {
      if (site->process_of(group, rank) == me) outcomes.push_back({group, rank, Status()});
    }
  }
  std::vector<std::thread> threads;
  for (RankOutcome& outcome : outcomes) {
    threads.emplace_back([&] {
      const auto device = devices.make();
      std::shared_ptr<InProcessGroup> group;
      int sharing = 0;
      const int64_t ordinal = devices.many ? outcome.rank : devices.ordinal;
      outcome.status = JoinSharedRendezvous(
          {site, run, outcome.group, outcome.rank, block, devices.on_host, ordinal}, {limit},
          &group, &sharing);
      if (!outcome.status.ok()) return;
      outcome.status = RunInGroup(group, outcome.rank, device.get(), {kPatience},
                                  [&](Communicator& comm) -> Status {
                                    const Status done = program({*device, comm});
                                    // Of what was enqueued, where that is not done at once.
                                    const Status finished = device->Synchronize();
                                    return done.ok() ? finished : done;
                                  });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void AllOk(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& one : outcomes) {
    EXPECT(one.status.ok()) << "rank " << one.rank << ": " << one.status.message();
  }
}

inline int OpenFiles() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

inline int Threads() {
  int count = 0;
  DIR* folder = opendir("/proc/self/task");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Groups go with the last thread of their ranks, soon after these are done.
template <typename Condition>
bool Soon(const Condition& condition) {
  for (int i = 0; i < 200; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// What others have sent for calls is for none that is under way, nor waits for one.
inline bool NoCallIsLeft() {
  return Soon([] { return Hub::Instance().calls() == 0; });
}

// Nor does anybody wait for this process to come to a call.
inline bool NothingIsLeft() {
  return Soon([] { return Hub::Instance().calls() == 0 && CountOpenSharedRendezvous() == 0; });
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_PROCESSES_H_
