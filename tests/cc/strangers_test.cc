// Strangers are other users of the host, and anyone who reaches its ports. They can't join a job,
// read its data, delay it or exhaust its resources. In all tests process 1 listens, and process 0
// connects to it during or after the strangers' attempts.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <random>

#include "tests/cc/support/processes.h"
#include "xla_ffi/comm/processes/connections/hmac.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uid_t kNobody = 65534;

Status Agrees(const RankContext& context) { return context.comm.Agree(Status::Ok()); }

ProcessAddress AddressOf(const std::map<int, std::string>& addresses, int process) {
  ProcessAddress address;
  const Status parsed = ParseAddress(addresses.at(process), &address);
  EXPECT(parsed.ok()) << parsed.message();
  return address;
}

// A blocking socket with a time limit for each call.
class Stranger {
 public:
  explicit Stranger(const ProcessAddress& address) {
    Status connected;
    if (address.tcp.empty()) {
      fd_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un name = {};
      name.sun_family = AF_UNIX;
      std::memcpy(name.sun_path + 1, address.unix_name.data(), address.unix_name.size());
      const auto size = offsetof(sockaddr_un, sun_path) + 1 + address.unix_name.size();
      connected_ =
          connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(size)) == 0;
    } else {
      connected_ = ConnectTcp(address.tcp[0], &fd_).ok();
      pollfd wait = {fd_.get(), POLLOUT, 0};
      connected_ = connected_ && poll(&wait, 1, 10000) == 1 && ConnectError(fd_.get()) == 0;
      fcntl(fd_.get(), F_SETFL, 0);
    }
    const timeval limit = {15, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  bool Send(const std::string& bytes) {
    return send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Reads `size` bytes, or fewer if the other side closes or if nothing arrives within the limit.
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    size_t done = 0;
    for (ssize_t count = 1; done < size && count > 0; done += count > 0 ? count : 0) {
      count = recv(fd(), bytes.data() + done, size - done, 0);
    }
    bytes.resize(done);
    return bytes;
  }
  // Returns whether the other side closes the connection within `limit`.
  bool IsClosed(milliseconds limit) {
    char byte;
    for (const auto begin = Clock::now(); Clock::now() - begin < limit;) {
      pollfd wait = {fd(), POLLIN, 0};
      if (poll(&wait, 1, 20) == 1 && recv(fd(), &byte, 1, 0) <= 0) return true;
    }
    return false;
  }
  // Reads one header and the body that follows it.
  FrameHeader ReadFrame(std::string* body) {
    FrameHeader header;
    const std::string bytes = Read(sizeof(header));
    if (bytes.size() != sizeof(header)) return {};
    std::memcpy(&header, bytes.data(), sizeof(header));
    *body = Read(static_cast<size_t>(header.bytes));
    return header;
  }

 private:
  Fd fd_;
  bool connected_ = false;
};

std::string FrameOf(FrameHeader header, const std::string& body, int64_t bytes = -1) {
  header.bytes = bytes < 0 ? static_cast<int64_t>(body.size()) : bytes;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body;
}

FrameHeader HelloOf(int from, int to) {
  FrameHeader header;
  header.type = FrameType::kHello;
  header.lead = static_cast<int32_t>(kFrameFormat);
  header.from = from;
  header.to = to;
  header.value = int64_t{60} * 1000000000;
  return header;
}

std::string RandomText(size_t size) {
  std::string text;
  EXPECT(RandomBytes(size, &text).ok());
  return text;
}

// Runs `part` as `user` in a child of this process, and returns its result.
bool AsUser(uid_t user, const std::function<bool()>& part) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    std::_Exit((user == 0 || setresuid(user, user, user) == 0) && part() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status == 0;
}

// Returns whether this process can act as another user. Root can, unless its namespace has no other
// users.
bool CanBeAnother(const char* test) {
  if (AsUser(kNobody, [] { return geteuid() == kNobody; })) return true;
  std::fprintf(stderr, "%s skipped: only root can act as another user\n", test);
  return false;
}

// Returns a socket whose other end has unread data and a full buffer, so that close() waits as long
// as SO_LINGER allows.
int LingeringSocket(std::vector<Fd>* others) {
  Fd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  auto* address = reinterpret_cast<sockaddr*>(&name);
  if (bind(listener.get(), address, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), address, &size) != 0) {
    return -1;
  }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, address, size) != 0) return -1;
  others->emplace_back(accept(listener.get(), nullptr, nullptr));
  const linger on = {1, 60};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &on, sizeof(on));
  const std::string bytes(1 << 16, 'x');
  while (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  return fd;
}

bool SendFile(int to, int file) {
  char byte = 'x';
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* with = CMSG_FIRSTHDR(&message);
  with->cmsg_level = SOL_SOCKET;
  with->cmsg_type = SCM_RIGHTS;
  with->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(with), &file, sizeof(file));
  return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

// The call that both processes make at the end. It must succeed.
std::string Solve(int) {
  AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, Agrees));
  EXPECT(NothingIsLeft());
  return "";
}

TEST(OtherUsersOfTheHostAreRefused) {
  if (!CanBeAnother("OtherUsersOfTheHostAreRefused")) return;
  JobOptions options;
  options.before = [](int process, std::map<int, std::string>* addresses) {
    if (process != 0) return;
    const ProcessAddress address = AddressOf(*addresses, 1);
    EXPECT(AsUser(kNobody, [&] {
      Stranger stranger(address);
      return stranger.connected() && stranger.IsClosed(seconds(5));
    }));
  };
  RunProcesses(2, Solve, options);
}

// Closing a refused connection closes the files that it carries, which may block.
TEST(FilesOfAnotherUserBlockNoProcess) {
  if (!CanBeAnother("FilesOfAnotherUserBlockNoProcess")) return;
  Clock::time_point begin;
  pid_t child = 0;
  int ready[2];
  EXPECT(pipe(ready) == 0);
  JobOptions options;
  options.before = [&](int process, std::map<int, std::string>* addresses) {
    std::string sent;
    if (process == 1) {  // accepts connections from here on
      EXPECT(ReadText(ready[0], &sent, 20000));
      begin = Clock::now();
      return;
    }
    const ProcessAddress address = AddressOf(*addresses, 1);
    child = fork();
    if (child == 0) {
      alarm(60);
      if (setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(1);
      std::vector<Fd> others;
      std::vector<std::unique_ptr<Stranger>> strangers;
      bool all = true;
      for (int i = 0; i < 4; ++i) {
        strangers.push_back(std::make_unique<Stranger>(address));
        const int file = LingeringSocket(&others);
        all = SendFile(strangers.back()->fd(), file) && all;
        close(file);
      }
      if (all) WriteText(ready[1], "sent");
      pause();
    }
  };
  RunProcesses(
      2,
      [&](int process) {
        AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, Agrees));
        EXPECT(process == 0 || SecondsSince(begin) < 5) << SecondsSince(begin);
        if (process == 0) kill(child, SIGKILL);
        return "";
      },
      options);
  close(ready[0]);
  close(ready[1]);
}

// Random bytes, lengths larger than any memory, truncated greetings, and other frames.
TEST(InvalidGreetingsAreClosed) {
  for (const Transport transport : {Transport::kAuto, Transport::kTcp}) {
    JobOptions options = Over(transport);
    options.before = [](int process, std::map<int, std::string>* addresses) {
      if (process != 0) return;
      const ProcessAddress address = AddressOf(*addresses, 1);
      std::mt19937 random(1);
      std::vector<std::string> words;
      for (int i = 0; i < 200; ++i) {
        words.push_back(RandomText(sizeof(FrameHeader) + random() % 500));
      }
      for (const int64_t bytes : {int64_t{-5}, int64_t{513}, int64_t{1} << 40, INT64_MAX}) {
        words.push_back(FrameOf(HelloOf(0, 1), "", bytes));
      }
      for (const size_t size : {0, 1, 31, 33, 64, 512}) {
        words.push_back(FrameOf(HelloOf(0, 1), std::string(size, 'x')));
      }
      FrameHeader other = HelloOf(0, 1);
      other.lead = static_cast<int32_t>(kFrameFormat) + 1;
      words.push_back(FrameOf(other, std::string(32, 'x')));
      for (const auto type : {FrameType::kPing, FrameType::kProof, FrameType::kRefusal,
                              FrameType::kJoin, FrameType::kSegment, FrameType::kNcclId}) {
        FrameHeader header = HelloOf(0, 1);
        header.type = type;
        words.push_back(FrameOf(header, std::string(32, 'x')));
      }
      for (const std::string& word : words) {
        Stranger stranger(address);
        EXPECT(stranger.connected());
        stranger.Send(word);
        EXPECT(stranger.IsClosed(seconds(5))) << word.size() << " bytes";
      }
      // Strangers that disconnect during a greeting.
      const std::string hello = FrameOf(HelloOf(0, 1), std::string(32, 'x'));
      for (size_t size = 0; size < hello.size(); size += 7) {
        EXPECT(Stranger(address).Send(hello.substr(0, size)));
      }
    };
    RunProcesses(2, Solve, options);
  }
}

// Strangers that don't know the job's key but know its processes.
TEST(NoProcessJoinsWithoutAProof) {
  for (const Transport transport : {Transport::kAuto, Transport::kTcp}) {
    JobOptions options = Over(transport);
    options.before = [](int process, std::map<int, std::string>* addresses) {
      if (process != 0) return;
      const ProcessAddress address = AddressOf(*addresses, 1);
      const struct {
        int from, to;
        const char* answer;
      } wrong[] = {
          {0, 0, "process 1 is here"},     {0, 2, "process 1 is here"},
          {1, 1, "higher indices alone"},  {2, 1, "higher indices alone"},
          {-1, 1, "higher indices alone"},
      };
      for (const auto& one : wrong) {
        Stranger stranger(address);
        std::string body;
        EXPECT(stranger.Send(FrameOf(HelloOf(one.from, one.to), std::string(32, 'x'))));
        const FrameHeader header = stranger.ReadFrame(&body);
        EXPECT(header.type == FrameType::kRefusal) << one.from << " to " << one.to;
        EXPECT(body.find(one.answer) != std::string::npos) << body;
        EXPECT(stranger.IsClosed(seconds(5)));
      }
      // The answer of process 1 to one stranger doesn't help another.
      std::string proof, before;
      for (int i = 0; i < 3; ++i) {
        Stranger stranger(address);
        std::string body, refusal;
        EXPECT(stranger.Send(FrameOf(HelloOf(0, 1), std::string(32, 'x'))));
        EXPECT(stranger.ReadFrame(&body).type == FrameType::kHello && body.size() == 64);
        body.resize(64);
        EXPECT(body.find("the only job") == std::string::npos);
        EXPECT(body.substr(32) != before);
        before = body.substr(32);
        if (i == 0) proof = before;
        FrameHeader header = HelloOf(0, 1);
        header.type = FrameType::kProof;
        EXPECT(stranger.Send(FrameOf(header, i == 2 ? std::string(32, '\0') : proof)));
        EXPECT(stranger.ReadFrame(&refusal).type == FrameType::kRefusal) << refusal;
        EXPECT(stranger.IsClosed(seconds(5)));
      }
    };
    RunProcesses(2, Solve, options);
  }
}

// A stranger that replaces process 1 learns nothing that would let it join the job.
TEST(ProcessesSendNoProofToAStranger) {
  JobOptions options;
  Fd listener;
  std::string name;
  EXPECT(ListenUnix(&listener, &name).ok());
  options.before = [&](int process, std::map<int, std::string>* addresses) {
    if (process != 0) return;
    std::string& text = addresses->at(1);
    text = text.substr(0, text.rfind("unix=")) + "unix=" + name;
    std::thread([&] {
      pollfd wait = {listener.get(), POLLIN, 0};
      EXPECT(poll(&wait, 1, 10000) == 1);
      Fd fd = Accept(listener);
      fcntl(fd.get(), F_SETFL, 0);
      char bytes[4096];
      const ssize_t count = recv(fd.get(), bytes, sizeof(bytes), 0);
      EXPECT(count == static_cast<ssize_t>(sizeof(FrameHeader) + 32)) << count;
      EXPECT(std::string(bytes, count).find("the only job") == std::string::npos);
      const std::string answer = FrameOf(HelloOf(1, 0), RandomText(64));
      EXPECT(send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
      EXPECT(recv(fd.get(), bytes, sizeof(bytes), 0) == 0);
    }).detach();
  };
  RunProcesses(
      2,
      [](int process) {
        for (const RankOutcome& one :
             RunRanksHere(SiteOn(2, {0, 1}), 1, Agrees, milliseconds(700))) {
          EXPECT(!one.status.ok());
        }
        for (const ConnectionInfo& info : Hub::Instance().Connections()) {
          EXPECT(info.state != "connected") << process << ": " << info.state;
        }
        return "";
      },
      options);
}

// Silent connections, slow ones, and ones that stop after a greeting.
TEST(AStrangerIsClosedAfterTenSeconds) {
  JobOptions options = Over(Transport::kTcp);
  options.before = [](int process, std::map<int, std::string>* addresses) {
    if (process != 0) return;
    ProcessAddress address = AddressOf(*addresses, 1);
    struct Three {
      explicit Three(const ProcessAddress& address)
          : silent(address), slow(address), greeted(address) {}
      Stranger silent, slow, greeted;
    };
    Three over_tcp(address);
    address.tcp.clear();
    Three over_unix(address);
    const std::string hello = FrameOf(HelloOf(0, 1), std::string(32, 'x'));
    for (Three* three : {&over_tcp, &over_unix}) {
      std::string body;
      EXPECT(three->greeted.Send(hello));
      EXPECT(three->greeted.ReadFrame(&body).type == FrameType::kHello);
    }
    const auto begin = Clock::now();
    for (size_t i = 0; SecondsSince(begin) < 13 && i < hello.size() - 1; ++i) {
      for (Three* three : {&over_tcp, &over_unix}) {
        three->slow.Send(hello.substr(i, 1));
        three->greeted.Send(hello.substr(i, 1));
      }
      std::this_thread::sleep_for(milliseconds(180));
    }
    for (Three* three : {&over_tcp, &over_unix}) {
      EXPECT(three->silent.IsClosed(seconds(1)) && three->slow.IsClosed(seconds(1)));
      EXPECT(three->greeted.IsClosed(seconds(1)));
    }
  };
  RunProcesses(2, Solve, options);
}

// Returns the processor time that this process has used.
double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto in_seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec * 1e-6; };
  return in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
}

// Many connections, both before process 0 connects to process 1 and after.
TEST(ManyConnectionsTakeFewResources) {
  for (const Transport transport : {Transport::kAuto, Transport::kTcp}) {
    std::vector<std::unique_ptr<Stranger>> strangers;
    const auto attack = [&](const ProcessAddress& address) {
      const std::string hello = FrameOf(HelloOf(0, 1), std::string(32, 'x'));
      for (int i = 0; i < 1500; ++i) {
        strangers.push_back(std::make_unique<Stranger>(address));
        EXPECT(strangers.back()->connected());
        if (i % 2 == 0) strangers.back()->Send(hello);
      }
    };
    ProcessAddress address;
    JobOptions options = Over(transport);
    options.before = [&](int process, std::map<int, std::string>* addresses) {
      if (process != 0) return;
      const rlimit limit = {4096, 4096};
      setrlimit(RLIMIT_NOFILE, &limit);
      address = AddressOf(*addresses, 1);
      attack(address);
    };
    RunProcesses(
        2,
        [&](int process) {
          const int files_before = OpenFiles(), threads_before = Threads();
          std::atomic<bool> over{false};
          int files = 0, threads = 0;
          std::thread watcher([&] {
            for (; process == 1 && !over; std::this_thread::sleep_for(milliseconds(2))) {
              files = std::max(files, OpenFiles());
              threads = std::max(threads, Threads());
            }
          });
          const auto site = SiteOn(2, {0, 1});
          const auto begin = Clock::now();
          AllOk(RunRanksHere(site, 1, Agrees));
          if (process == 0) {
            EXPECT(SecondsSince(begin) < 5) << SecondsSince(begin);
            strangers.clear();
            attack(address);
          }
          AllOk(RunRanksHere(site, 2, Agrees));
          over = true;
          watcher.join();
          // Includes connections that may still greet, and connections that are being closed.
          EXPECT(files < files_before + 160) << files << " files, " << files_before << " before";
          EXPECT(threads < threads_before + 40) << threads << " threads";
          // All strangers' connections have been closed.
          EXPECT(process == 0 || Soon([&] { return OpenFiles() < files_before + 20; }));
          const int idle = OpenFiles();
          const auto start = Clock::now();
          for (int run = 3; run < 40; ++run) AllOk(RunRanksHere(site, run, Agrees));
          EXPECT(SecondsSince(start) < 5) << SecondsSince(start);
          EXPECT(process == 0 || OpenFiles() <= idle + 1) << OpenFiles();
          return "";
        },
        options);
  }
}

// Connections that wait for accept() fill the queue until process 1 accepts and closes them.
TEST(AFullQueueIsWaitedFor) {
  const rlimit limit = {6000, 6000};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    std::fprintf(stderr, "AFullQueueIsWaitedFor skipped: no 6000 descriptors\n");
    return;
  }
  std::vector<Fd> strangers;
  JobOptions options;
  options.before = [&](int process, std::map<int, std::string>* addresses) {
    if (process == 1) return std::this_thread::sleep_for(seconds(5));
    const ProcessAddress address = AddressOf(*addresses, 1);
    Status connected;
    while (connected.ok() && strangers.size() < 5500) {
      strangers.emplace_back();
      connected = ConnectUnix(address.unix_name, &strangers.back());
    }
    EXPECT(connected.code() == Code::kResourceExhausted) << connected.message();
  };
  RunProcesses(2, Solve, options);
}

// The hub's thread doesn't spin if no descriptor is free, and process 0 connects later.
TEST(AProcessWithoutDescriptorsWaits) {
#ifdef __SANITIZE_ADDRESS__
  // The sanitizer uses a pipe to test whether memory is readable. Without a descriptor it would
  // report the memory as freed.
  std::fprintf(stderr, "AProcessWithoutDescriptorsWaits skipped: the sanitizer needs them\n");
  return;
#endif
  JobOptions options = Over(Transport::kTcp);
  options.before = [](int process, std::map<int, std::string>* addresses) {
    if (process == 1) {
      const auto most = static_cast<rlim_t>(OpenFiles() + 8);
      const rlimit limit = {most, most};
      EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
      return;
    }
    const ProcessAddress address = AddressOf(*addresses, 1);
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 30; ++i) strangers.push_back(std::make_unique<Stranger>(address));
    std::this_thread::sleep_for(seconds(2));
  };
  RunProcesses(
      2,
      [](int process) {
        const double before = ProcessorSeconds();
        std::this_thread::sleep_for(milliseconds(1500));
        EXPECT(process == 0 || ProcessorSeconds() - before < 0.3) << ProcessorSeconds() - before;
        return Solve(process);
      },
      options);
}

// Processes of one host listen over TCP only on request, and then only on the loopback interface.
TEST(NoOtherHostReachesAJobOfOneHost) {
  for (const Transport transport : {Transport::kAuto, Transport::kUnix, Transport::kTcp}) {
    JobOptions options = Over(transport);
    options.before = [&](int process, std::map<int, std::string>* addresses) {
      const ProcessAddress address = AddressOf(*addresses, 1 - process);
      EXPECT(address.tcp.size() == (transport == Transport::kTcp ? 1 : 0));
      for (const std::string& one : address.tcp) EXPECT(IsLoopback(one)) << one;
    };
    RunProcesses(2, Solve, options);
  }
}

TEST(ProcessesThatNeedTcp) {
  ProcessAddress one, same, other;
  one.local = same.local = "here";
  other.local = "there";
  const auto between = [&](Transport transport, const ProcessAddress& higher) {
    one.transport = NameOf(transport);
    return TcpBetween(one, higher);
  };
  EXPECT(between(Transport::kAuto, same).empty() && between(Transport::kNccl, same).empty());
  EXPECT(between(Transport::kUnix, same).empty() && between(Transport::kUnix, other).empty());
  EXPECT(between(Transport::kTcp, same) == "loopback");
  EXPECT(between(Transport::kTcp, other) == "any" && between(Transport::kAuto, other) == "any");
  EXPECT(between(Transport::kNccl, other) == "any");
  EXPECT(IsLoopback("127.0.0.1:5") && IsLoopback("127.3.0.1:5") && IsLoopback("[::1]:5"));
  EXPECT(!IsLoopback("10.0.0.1:127") && !IsLoopback("[fe80::1]:5"));
  Fd listener;
  std::vector<std::string> addresses;
  EXPECT(ListenTcp(TcpScope::kAny, &listener, &addresses).ok());
  for (const std::string& address : addresses) EXPECT(!IsLoopback(address)) << address;
}

}  // namespace
}  // namespace jaxmg
