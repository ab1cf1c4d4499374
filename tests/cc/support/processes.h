// Runs a part of a test in several processes, forked from this one and connected to each other like
// the processes of a job. This process must not have other threads.
#ifndef JAXMG_TESTS_CC_SUPPORT_PROCESSES_H_
#define JAXMG_TESTS_CC_SUPPORT_PROCESSES_H_

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

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/segments.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/rendezvous/shared_rendezvous.h"

namespace jaxmg::testing {

struct JobOptions {
  std::string job = "the only job";
  std::string version = "1";
  Transport transport = Transport::kAuto;
  Seconds peer_timeout = std::chrono::seconds(20);
  int first = 0;  // the index of the first process
  // Makes one process differ from the others, as in another version or another job.
  std::function<void(int process, JobOptions*)> change = nullptr;
  // Called when a process has the addresses of the others, before it passes the addresses to its
  // hub.
  std::function<void(int process, std::map<int, std::string>*)> before = nullptr;
};

// The options of a job over this transport.
inline JobOptions Over(Transport transport, Seconds peer_timeout = JobOptions().peer_timeout) {
  JobOptions options;
  options.transport = transport;
  options.peer_timeout = peer_timeout;
  return options;
}

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline double SecondsSince(Clock::time_point begin) {
  return Seconds(Clock::now() - begin).count();
}

// Writes all bytes or fails. SIGPIPE ends a process whose parent has ended.
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

// The part of each process. It returns a text to the test.
using Part = std::function<std::string(int process)>;

// Returns the texts of all parts; the text is empty if a process ended before its part returned.
// Kills a process that takes longer than a minute and fails the test, unless the process is in
// `lost`. Kills processes in `lost` when the others have returned.
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
      // Waits, because others may still read sent data. _Exit skips the destructors of static
      // objects.
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
  std::vector<bool> through(count, false);
  for (int i = 0; i < count; ++i) {
    if (is_lost(i)) continue;
    through[i] = ReadText(children[i].from, &results[i], 60000);
    EXPECT(through[i]) << "process " << options.first + i << " is not through";
    if (!through[i]) kill(children[i].pid, SIGKILL);
  }
  for (int i = 0; i < count; ++i) {
    if (is_lost(i)) {
      kill(children[i].pid, SIGKILL);
    } else if (through[i]) {
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

// A call whose ranks are distributed over processes, as a handler's instantiate stage creates it.
inline std::shared_ptr<const SharedCallSite> SiteOn(int ranks, const std::vector<int>& processes,
                                                    const std::string& text = "potrs (n 8)") {
  return NewSharedCallSite(text.substr(0, text.find(' ')), text, ranks, processes);
}

struct RankOutcome {
  int group, rank;
  Status status;
};

// The devices of the ranks of a process.
struct Devices {
  std::function<std::unique_ptr<Device>()> make = NewSharingHostDevice;
  bool on_host = true;  // sockets send blocks directly from their memory
  bool many = false;    // each rank has a device of its own
  int64_t ordinal = 0;  // number of the common device, unless `many`
};

// Runs the ranks of this process in a call, each on its own thread, as the handlers do.
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
                                    // Any enqueued work has its own error.
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

// Waits up to two seconds for a condition. A condition may depend on a group, which the last thread
// of its ranks destroys shortly after the others are done.
template <typename Condition>
bool Soon(const Condition& condition) {
  for (int i = 0; i < 200; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Returns whether no call is running and no received data waits for one.
inline bool NoCallIsLeft() {
  return Soon([] { return Hub::Instance().calls() == 0; });
}

// Returns whether, in addition, no other process waits for this process in a call.
inline bool NothingIsLeft() {
  return Soon([] { return Hub::Instance().calls() == 0 && CountOpenSharedRendezvous() == 0; });
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_PROCESSES_H_
