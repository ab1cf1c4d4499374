// A connection's frames and the file descriptors that they carry, over a pair of sockets within
// this process.
#include "xla_ffi/comm/processes/connections/connection.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

struct Ends {
  Ends() {
    int fds[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    for (int i = 0; i < 2; ++i) {
      epoll_event event = {};
      event.events = EPOLLIN;
      epoll_ctl(poller.get(), EPOLL_CTL_ADD, fds[i], &event);
      (i == 0 ? near : far) = std::make_unique<Connection>(Fd(fds[i]), "unix", poller.get());
    }
  }
  Fd poller{epoll_create1(EPOLL_CLOEXEC)};
  std::unique_ptr<Connection> near, far;
};

OutFrame Frame(FrameType type, int32_t from) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.from = from;
  return frame;
}

// Returns the identity of a file, which is equal for all of its descriptors.
std::pair<dev_t, ino_t> Identity(const Fd& file) {
  struct stat found = {};
  if (fstat(file.get(), &found) != 0) return {0, 0};
  return {found.st_dev, found.st_ino};
}

std::shared_ptr<const Fd> NewFile() {
  return std::make_shared<const Fd>(Fd(memfd_create("jaxmg-test", MFD_CLOEXEC)));
}

// A connecting process sends the last frame of its greeting and, immediately after, the descriptor
// of its memory. Often both have arrived before the other side reads.
TEST(AFileThatArrivesWithTheLastGreetingIsKept) {
  Ends ends;
  const auto file = NewFile();
  EXPECT(ends.near->Send(Frame(FrameType::kPing, 0)).ok());
  OutFrame segment = Frame(FrameType::kSegment, 7);
  segment.file = file;
  EXPECT(ends.near->Send(std::move(segment)).ok());

  Fd came;
  int frames = 0;
  std::string why;
  EXPECT(ends.far->Read(
      [&](const FrameHeader& header, Payload) {
        ++frames;
        if (header.type == FrameType::kPing) ends.far->Trust();
        if (header.type == FrameType::kSegment) came = ends.far->TakeFile();
        return true;
      },
      &why))
      << why;
  EXPECT(frames == 2);
  EXPECT(came.get() >= 0 && Identity(came) == Identity(*file));
}

TEST(FilesBelongToTheirFrames) {
  Ends ends;
  ends.far->Trust();
  std::vector<std::shared_ptr<const Fd>> files;
  for (int i = 0; i < 40; ++i) {  // more files than one recvmsg takes
    OutFrame frame = Frame(i % 3 == 0 ? FrameType::kPing : FrameType::kSegment, i);
    frame.body = std::string(i * 7, 'x');
    files.push_back(i % 3 == 0 ? nullptr : NewFile());
    frame.file = files.back();
    EXPECT(ends.near->Send(std::move(frame)).ok());
  }
  int frames = 0;
  std::string why;
  for (int turn = 0; turn < 200 && frames < 40; ++turn) {
    EXPECT(ends.far->Read(
        [&](const FrameHeader& header, Payload payload) {
          EXPECT(header.from == frames && payload.size == static_cast<size_t>(frames) * 7);
          if (header.type == FrameType::kSegment) {
            EXPECT(Identity(ends.far->TakeFile()) == Identity(*files[header.from]));
          }
          ++frames;
          return true;
        },
        &why))
        << why;
  }
  EXPECT(frames == 40) << frames;
  EXPECT(ends.far->TakeFile().get() < 0);
}

TEST(FilesFromAStrangerAreClosed) {
  Ends ends;
  int pipes[2];
  EXPECT(pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
  OutFrame frame = Frame(FrameType::kHello, 0);
  frame.file = std::make_shared<const Fd>(Fd(pipes[1]));
  EXPECT(ends.near->Send(std::move(frame)).ok());  // closes this process's own descriptor
  std::string why;
  EXPECT(ends.far->Read([](const FrameHeader&, Payload) { return true; }, &why)) << why;
  EXPECT(ends.far->TakeFile().get() < 0);
  // All descriptors of the writing end are closed.
  char byte;
  EXPECT(read(pipes[0], &byte, 1) == 0);
  close(pipes[0]);
}

}  // namespace
}  // namespace jaxmg
