// Hub: this process's end of the connections with other processes of the job. It listens, connects,
// notices whom it has lost, and hands frames to whom they are for. It knows neither what a call is
// nor how ranks agree: that is process_meeting.h and process_group.h. README.md has the picture.
#ifndef JAXMG_XLA_FFI_COMM_HUB_H_
#define JAXMG_XLA_FFI_COMM_HUB_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/address.h"
#include "xla_ffi/comm/connection.h"
#include "xla_ffi/comm/frame.h"
#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// Who gets frames. Called on the hub's thread, which must not be kept.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept = 0;
  // The process is lost for ever.
  virtual void OnLost(int process, const Status& why) noexcept = 0;
};

// How blocks pass between processes: as is best for each pair, or by sockets alone, or by wires
// alone.
enum class Transport { kAuto, kUnix, kTcp, kWires };

struct ConnectionInfo {
  int process;
  std::string host;
  int64_t pid;
  std::string transport;  // empty where there is none
  std::string state;      // "connected", "connecting" or "lost: ..."
};

// A call, after its lead has given it a number: (index of the lead's process, number).
using CallId = std::pair<int, int64_t>;

inline OutFrame CallFrame(const CallId& id, FrameType type, int from, int to = 0) noexcept {
  OutFrame frame;
  frame.header.type = type;
  frame.header.lead = id.first;
  frame.header.call = id.second;
  frame.header.from = from;
  frame.header.to = to;
  return frame;
}

class Hub {
 public:
  // The process's only one.
  static Hub& The();

  // --- Settings ----------------------------------------------------------------------------------
  // From how long a silence on a process counts as lost.
  Seconds peer_timeout() const;
  void set_peer_timeout(Seconds limit);
  // Before the first connection.
  void set_transport(Transport transport);
  Transport transport() const { return transport_; }

  // --- Becoming connected ------------------------------------------------------------------------
  // Listens from the first call on. Frames of meetings go to `meetings`.
  Status Listen(const std::string& version, FrameSink* meetings, std::string* address);
  // Says who is who in the job of that token: `me` is this process. May be called again with more
  // processes. Begins to connect, and doesn't wait.
  Status Connect(int me, const std::map<int, std::string>& addresses, const std::string& job);
  std::vector<ConnectionInfo> Connections();

  // --- Other processes ---------------------------------------------------------------------------
  // -1 before Connect.
  int me();
  const std::string& version() const { return self_.version; }
  // "process 1 (host h, pid 42)".
  std::string Describe(int process);
  // Of some processes, how many run on processors that this one has too.
  int CountOnMyCores(const std::vector<int>& processes);
  // Waits until the connection is there, or the process is lost.
  Status Await(int process, Clock::time_point deadline);
  // The connection; null where there is none, or none any more.
  std::shared_ptr<Connection> ConnectionTo(int process);
  // Why a process is lost; Ok if it isn't.
  Status LostBecause(int process);

  // --- Calls -------------------------------------------------------------------------------------
  // Frames of the call, those that came before it too, go to `call` while it lives. Those that come
  // for a call later are dropped.
  void Enter(const CallId& id, const std::shared_ptr<FrameSink>& call);
  // A call that this process has left before it began: frames for it are dropped.
  void Skip(const CallId& id);
  void Leave(const CallId& id);
  // Calls that are under way and frames that wait for one.
  size_t calls();

 private:
  template <typename T>
  friend T& Forever();
  Hub() = default;

  struct Parked {
    int process;
    FrameHeader header;
    Payload payload;
  };
  struct Peer {
    ProcessAddress address;
    std::shared_ptr<Connection> connection;
    std::string transport;
    Status lost;
    double limit = 0;  // of its patience with this process, in seconds; 0: unknown
    // Attempts to connect, by the process of the lower index.
    size_t next_route = 0;
    bool attempting = false, rounds_failed = false;
    std::string tried;
    Clock::time_point next_attempt = {}, give_up = {};
  };
  // A socket that is not a peer's connection yet.
  struct Greeting {
    std::shared_ptr<Connection> connection;
    int process = -1;         // whom this process connects to; -1: not known, it was accepted
    bool connecting = false;  // not established yet
    bool greeted = false;     // the hello has come, perhaps for a job that is not known here yet
    bool replied = false;     // with this process's
    FrameHeader hello;
    std::string job;
    Clock::time_point deadline = {};
  };

  // --- The thread (hub_loop.cc) ------------------------------------------------------------------
  Status Start();
  Status Watch(int fd, uint32_t events);
  void Wake() noexcept;
  void Run() noexcept;
  void Turn();
  void Tick(Clock::time_point now);
  void GoOn(int fd, uint32_t events);
  void Close(int fd, const std::string& why);
  bool Deliver(int process, const FrameHeader& header, Payload payload);
  bool MayBegin(const CallId& id) const;
  void Know(const CallId& id);
  void Lose(int process, const std::string& why) noexcept;
  Seconds TickLength() const;
  void Ping(Connection& connection);

  // --- Becoming connected (hub_greeting.cc) ------------------------------------------------------
  void AcceptAll(const Fd& listener, const char* transport);
  Status NewGreeting(Fd fd, std::string transport, int process);
  std::vector<std::string> Routes(const Peer& peer) const;
  void Attempt(int process, Peer& peer);
  bool Established(int fd, Greeting& greeting);
  void Greet(Connection& connection, int process);
  bool HelloCame(int fd, Greeting& greeting, const FrameHeader& header, const Payload& payload);
  void Admit(int fd, Greeting& greeting);
  void Attach(int fd, Greeting& greeting);
  void EndGreeting(int fd, const std::string& why);
  void TickGreetings();

  std::string DescribeLocked(int process);

  std::atomic<double> peer_timeout_{60};
  std::atomic<Transport> transport_{Transport::kAuto};

  Monitor monitor_;  // of all that follows but what is the thread's own
  bool started_ = false;
  Clock::time_point limit_since_ = Clock::now();  // others spoke as often as an older limit asked
  ProcessAddress self_;
  int me_ = -1;
  std::string job_;
  std::map<int, Peer> peers_;
  FrameSink* meetings_ = nullptr;
  std::map<CallId, std::weak_ptr<FrameSink>> calls_;
  std::map<CallId, std::vector<Parked>> parked_;
  std::map<int, int64_t> known_;  // by lead: the last number of a call that this process heard of

  Fd poller_, waker_, unix_listener_, tcp_listener_;
  // The thread's own.
  std::map<int, std::pair<int, std::shared_ptr<Connection>>> open_;  // by socket: whose it is
  std::map<int, Greeting> greetings_;
  Clock::time_point last_turn_ = Clock::now(), next_tick_ = Clock::now();
  Clock::time_point spin_until_ = {};
  bool may_spin_ = false;
  double shortest_limit_ = 60;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_HUB_H_
