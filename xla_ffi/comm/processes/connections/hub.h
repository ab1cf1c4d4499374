// Hub: this process's end of the connections with the other processes of the job. It listens,
// connects, detects lost processes and delivers frames. It knows nothing of calls or agreements:
// see shared_rendezvous.h and process_group.h. README.md has a diagram.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HUB_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HUB_H_

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
#include "xla_ffi/comm/processes/connections/address.h"
#include "xla_ffi/comm/processes/connections/connection.h"
#include "xla_ffi/comm/processes/connections/frame.h"

namespace jaxmg {

// Receives frames. Called on the hub's thread, which it must not block.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept = 0;
  // Called when a process is permanently lost.
  virtual void OnLost(int process, const Status& why) noexcept = 0;
  // For the rendezvous: called periodically, at least once a second. Returns the latest time of the
  // next call.
  virtual Clock::time_point OnTick() noexcept { return Clock::time_point::max(); }
};

struct ConnectionInfo {
  int process;
  std::string host;
  int64_t pid;
  std::string transport;  // empty if not connected
  std::string state;      // "connected", "connecting" or "lost: ..."
};

// A call that has begun: the index of its lead (the process of rank 0) and the number that the lead
// has assigned to the call.
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
  // Returns the process's single instance.
  static Hub& Instance();

  // --- Settings ---------------------------------------------------------------------------------
  // Return and set the duration of silence after which another process is considered lost.
  Seconds peer_timeout() const;
  void set_peer_timeout(Seconds limit);
  // Must be called before the first connection.
  void set_transport(Transport transport);
  Transport transport() const { return transport_; }

  // --- Becoming connected -----------------------------------------------------------------------
  // Listens on a Unix socket from the first call on. Delivers rendezvous frames to `rendezvous`.
  Status Listen(const std::string& version, FrameSink* rendezvous, std::string* address);
  // Also listens over TCP, from the first call for that scope on. `*lines` must be appended to this
  // process's address for the processes that need TCP (TcpBetween).
  Status ListenOverTcp(TcpScope scope, std::string* lines);
  // Sets the index of this process and the addresses of the others. Only processes of the job know
  // `key`. May be called again with more processes. Starts to connect; doesn't wait.
  Status Connect(int me, const std::map<int, std::string>& addresses, const std::string& key);
  std::vector<ConnectionInfo> Connections();

  // --- Other processes --------------------------------------------------------------------------
  // Returns the index of this process; -1 before Connect.
  int me();
  const std::string& version() const { return self_.version; }
  // Returns a text like "process 1 (host h, pid 42)".
  std::string Describe(int process);
  // Returns how many of these processes share processors with this one.
  int CountOnMyCores(const std::vector<int>& processes);
  // Waits until the process is connected or lost.
  Status Await(int process, Clock::time_point deadline);
  // Returns the connection, or null if there is none.
  std::shared_ptr<Connection> ConnectionTo(int process);
  // Returns why a process is lost; Ok if it isn't.
  Status LossOf(int process);

  // --- Calls ------------------------------------------------------------------------------------
  // Delivers the frames of the call, including those that came earlier, to `call` while it lives.
  // Frames that come afterwards are dropped.
  void Enter(const CallId& id, const std::shared_ptr<FrameSink>& call);
  // Drops the frames of a call that this process abandoned before the call began.
  void Skip(const CallId& id);
  void Leave(const CallId& id);
  // Returns the number of calls in progress plus the number of calls with stored frames.
  size_t calls();

 private:
  template <typename T>
  friend T& Forever();
  Hub() = default;

  // A frame for a call that has not begun in this process yet.
  struct ParkedFrame {
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
    double limit = 0;  // the peer's silence limit for this process, in seconds; 0: unknown
    // Attempts to connect, which this process makes if it has the lower index.
    size_t next_route = 0;
    bool attempting = false, rounds_failed = false;
    std::string tried, why_not;  // the errors of this round over all routes, and of the previous
    Clock::time_point next_attempt = {}, give_up = {};
  };
  // A socket that isn't a peer's connection yet. The accepting side treats the other side as a
  // stranger.
  struct Handshake {
    std::shared_ptr<Connection> connection;
    int process = -1;         // the process to connect to; -1 for an accepted connection
    bool connecting = false;  // not established yet
    bool replied = false;     // the hello was sent to the connecting process
    FrameHeader hello;        // received from the other side
    std::string nonce, their_nonce;
    // The limit of the whole handshake; received data doesn't extend it.
    Clock::time_point deadline = {};
  };
  // A listening socket. Watched only while a process with a lower index is not connected; at other
  // times strangers cost no time.
  struct Listener {
    Fd fd;
    const char* transport;
    bool watched = false;
    Clock::time_point rests_until = {};
  };
  // How a handshake ends. After kFailed or kSilent the next route is tried, after kNotYet the same
  // route again. After kWrong the process is lost once the remaining routes have failed.
  enum class Ending { kFailed, kSilent, kNotYet, kWrong };

  // --- The thread (hub_loop.cc) -----------------------------------------------------------------
  Status Start();
  Status Watch(int fd, uint32_t events);
  void Wake() noexcept;
  void Run() noexcept;
  void RunOnce();
  void Tick(Clock::time_point now);
  void TickAt(Clock::time_point when) { next_tick_ = std::min(next_tick_, when); }
  void HandleEvents(int fd, uint32_t events);
  void Close(int fd, const std::string& why);
  bool Deliver(int process, const FrameHeader& header, Payload payload);
  bool MayBegin(const CallId& id) const;
  void RecordKnown(const CallId& id);
  bool Park(const CallId& id, ParkedFrame frame);
  void Unpark(const ParkedFrame& frame) noexcept;
  void DropParked(const CallId& first, const CallId& last) noexcept;
  void Lose(int process, const std::string& why) noexcept;
  Seconds TickLength() const;
  void Ping(Connection& connection);

  // --- Becoming connected (hub_handshake.cc) ----------------------------------------------------
  Status AddListener(Fd fd, const char* transport);
  Listener* FindListener(int fd);
  void WatchListeners();
  void AcceptSome(Listener& listener);
  void EndOldestStranger();
  Status NewHandshake(Fd fd, std::string transport, int process);
  std::vector<std::string> Routes(const Peer& peer) const;
  void Attempt(int process, Peer& peer);
  bool OnConnected(int fd, Handshake& handshake);
  void SendHello(Connection& connection, int process, const std::string& body);
  bool OnHandshakeFrame(int fd, Handshake& handshake, const FrameHeader& header,
                        const Payload& payload);
  void Answer(int fd, Handshake& handshake);
  void Confirm(int fd, Handshake& handshake, const std::string& proof);
  std::string ProofOf(int prover, int process, const Handshake& handshake) const;
  void Refuse(int fd, Handshake& handshake, const std::string& why, bool not_yet = false);
  void Attach(int fd, Handshake& handshake);
  void EndHandshake(int fd, const std::string& why, Ending ending = Ending::kFailed);
  void TickHandshakes();

  std::string DescribeLocked(int process);

  std::atomic<double> peer_timeout_{60};
  std::atomic<Transport> transport_{Transport::kAuto};

  Monitor monitor_;  // guards everything below except the thread's own state
  bool started_ = false;
  Clock::time_point limit_since_ = Clock::now();  // before this time peers used an older limit
  ProcessAddress self_;
  int me_ = -1;
  std::string key_;
  std::map<TcpScope, std::string> tcp_lines_;
  std::map<int, Peer> peers_;
  FrameSink* rendezvous_ = nullptr;
  std::map<CallId, std::weak_ptr<FrameSink>> calls_;
  std::map<CallId, std::vector<ParkedFrame>> parked_;
  std::map<int, ParkedSize> parked_size_;  // of each process's stored frames
  // by lead: the number of the last call announced to this process
  std::map<int, int64_t> known_;

  Fd poller_, waker_;
  std::list<Listener> listeners_;  // elements are never removed
  // State of the thread.
  // by socket: the process and its connection
  std::map<int, std::pair<int, std::shared_ptr<Connection>>> open_;
  std::map<int, Handshake> handshakes_;
  size_t awaited_ = 0;  // number of processes that have to connect to this one
  Clock::time_point last_turn_ = Clock::now(), next_tick_ = Clock::now();
  Clock::time_point spin_until_ = {};
  bool may_spin_ = false;
  double shortest_limit_ = 60;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HUB_H_
