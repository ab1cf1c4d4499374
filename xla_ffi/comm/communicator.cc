#include "xla_ffi/comm/communicator.h"

namespace jaxmg {

Status GivenUp(const Status& failure) noexcept {
  if (failure.code() == Code::kCancelled) return failure;
  return Guarded([&] {
    return Error(Code::kAborted, "given up because another rank failed: ", failure.text());
  });
}

Status Broadcast(Communicator& comm, Stream stream, int root, const Bytes2D& block) {
  return comm.rank() == root ? comm.SendToAll(stream, block) : comm.Recv(stream, root, block);
}

Status AllGather(Communicator& comm, Device& device, Stream stream, const void* mine, void* all,
                 size_t bytes) {
  auto part = [&](int rank) {
    return Bytes2D{static_cast<char*>(all) + rank * bytes, bytes, bytes, 1};
  };
  const Bytes2D source = {const_cast<void*>(mine), bytes, bytes, 1};
  JAXMG_RETURN_IF_ERROR(comm.SendToAll(stream, source));
  JAXMG_RETURN_IF_ERROR(device.Copy(stream, part(comm.rank()), source));
  for (int step = 1; step < comm.size(); ++step) {
    const int peer = (comm.rank() - step + comm.size()) % comm.size();
    JAXMG_RETURN_IF_ERROR(comm.Recv(stream, peer, part(peer)));
  }
  return WaitAllSent(comm, stream);
}

Status RunCollectively(Communicator& comm, const std::function<Status()>& step) {
  const Status status = Guarded(step);
  if (!status.ok()) comm.Abort(status);
  return comm.Agree(status);
}

Status WaitAllSent(Communicator& comm, Stream stream) {
  for (int step = 1; step < comm.size(); ++step) {
    const int peer = (comm.rank() + step) % comm.size();
    JAXMG_RETURN_IF_ERROR(comm.WaitSent(stream, peer, comm.Sent(peer)));
  }
  return Status::Ok();
}

}  // namespace jaxmg
