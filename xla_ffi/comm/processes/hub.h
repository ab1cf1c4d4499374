// Hub: this process's end of the connections with other processes of the job. It listens, connects,
// notices whom it has lost, and hands frames to whom they are for. It knows neither what a call is
// nor how ranks agree: that is process_meeting.h and process_group.h. README.md has the picture.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_HUB_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_HUB_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/address.h"
#include "xla_ffi/comm/processes/connection.h"
#include "xla_ffi/comm/processes/frame.h"

namespace jaxmg {

// Who gets frames. Called on the hub's thread, which must not be kept.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept = 0;
  // The process is lost for ever.
  virtual void OnLost(int process, const Status& why) noexcept = 0;
  // Of meetings: now and then, a second apart at most.
  virtual void OnTick() noexcept {}
};

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
  // Listens from the first call on, at a Unix socket. Frames of meetings go to `meetings`.
  Status Listen(const std::string& version, FrameSink* meetings, std::string* address);
  // Listens over TCP too, from the first call for that scope on. `*lines` is what to append to this
  // process's address for those that have to reach it so (TcpBetween).
  Status ListenOverTcp(TcpScope scope, std::string* lines);
  // Says who is who in the job whose processes alone know `key`: `me` is this process. May be
  // called again with more processes. Begins to connect, and doesn't wait.
  Status Connect(int me, const std::map<int, std::string>& addresses, const std::string& key);
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
  struct ParkedSize {
    size_t frames = 0, bytes = 0;
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
    std::string tried, why_not;  // of this round, and of the one before it
    Clock::time_point next_attempt = {}, give_up = {};
  };
  // A socket that is not a peer's connection yet. Who accepted it speaks with a stranger.
  struct Greeting {
    std::shared_ptr<Connection> connection;
    int process = -1;         // whom this process connects to; -1: it was accepted
    bool connecting = false;  // not established yet
    bool replied = false;     // who connected has this process's hello
    FrameHeader hello;        // of the other side
    std::string nonce, their_nonce;
    // For all of it: nothing that comes meanwhile makes it later.
    Clock::time_point deadline = {};
  };
  // Looked at only while a process is awaited that has to connect to this one: strangers cost
  // nothing in between.
  struct Listener {
    Fd fd;
    const char* transport;
    bool watched = false;
    Clock::time_point rests_until = {};
  };
  // How a greeting ends: it may be tried again, later by the same route, or never.
  enum class Ending { kFailed, kSilent, kNotYet, kWrong };

  // --- The thread (hub_loop.cc) ------------------------------------------------------------------
  Status Start();
  Status Watch(int fd, uint32_t events);
  void Wake() noexcept;
  void Run() noexcept;
  void Turn();
  void Tick(Clock::time_point now);
  void TickAt(Clock::time_point when) { next_tick_ = std::min(next_tick_, when); }
  void GoOn(int fd, uint32_t events);
  void Close(int fd, const std::string& why);
  bool Deliver(int process, const FrameHeader& header, Payload payload);
  bool MayBegin(const CallId& id) const;
  void Know(const CallId& id);
  bool Park(const CallId& id, Parked frame);
  void Unpark(const Parked& frame) noexcept;
  void DropParked(const CallId& first, const CallId& last) noexcept;
  void Lose(int process, const std::string& why) noexcept;
  Seconds TickLength() const;
  void Ping(Connection& connection);

  // --- Becoming connected (hub_greeting.cc) ------------------------------------------------------
  Status AddListener(Fd fd, const char* transport);
  Listener* ListenerOf(int fd);
  void WatchListeners();
  void AcceptSome(Listener& listener);
  void EndOldestStranger();
  Status NewGreeting(Fd fd, std::string transport, int process);
  std::vector<std::string> Routes(const Peer& peer) const;
  void Attempt(int process, Peer& peer);
  bool Established(int fd, Greeting& greeting);
  void Greet(Connection& connection, int process, const std::string& body);
  bool GreetingCame(int fd, Greeting& greeting, const FrameHeader& header, const Payload& payload);
  void Answer(int fd, Greeting& greeting);
  void Confirm(int fd, Greeting& greeting, const std::string& proof);
  std::string ProofOf(int prover, int process, const Greeting& greeting) const;
  void Refuse(int fd, Greeting& greeting, const std::string& why, bool not_yet = false);
  void Attach(int fd, Greeting& greeting);
  void EndGreeting(int fd, const std::string& why, Ending ending = Ending::kFailed);
  void TickGreetings();

  std::string DescribeLocked(int process);

  std::atomic<double> peer_timeout_{60};
  std::atomic<Transport> transport_{Transport::kAuto};

  Monitor monitor_;  // of all that follows but what is the thread's own
  bool started_ = false;
  Clock::time_point limit_since_ = Clock::now();  // others spoke as often as an older limit asked
  ProcessAddress self_;
  int me_ = -1;
  std::string key_;
  std::map<TcpScope, std::string> tcp_lines_;
  std::map<int, Peer> peers_;
  FrameSink* meetings_ = nullptr;
  std::map<CallId, std::weak_ptr<FrameSink>> calls_;
  std::map<CallId, std::vector<Parked>> parked_;
  std::map<int, ParkedSize> parked_size_;  // of each process's frames
  std::map<int, int64_t> known_;  // by lead: the last number of a call that this process heard of

  Fd poller_, waker_;
  std::list<Listener> listeners_;  // none of them ends
  // The thread's own.
  std::map<int, std::pair<int, std::shared_ptr<Connection>>> open_;  // by socket: whose it is
  std::map<int, Greeting> greetings_;
  size_t awaited_ = 0;  // processes that have to connect to this one
  Clock::time_point last_turn_ = Clock::now(), next_tick_ = Clock::now();
  Clock::time_point spin_until_ = {};
  bool may_spin_ = false;
  double shortest_limit_ = 60;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_HUB_H_
