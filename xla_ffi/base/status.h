// Status: the outcome of a call that can fail. Nothing in xla_ffi/ throws across a module's border.
#ifndef JAXMG_XLA_FFI_BASE_STATUS_H_
#define JAXMG_XLA_FFI_BASE_STATUS_H_

#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>

namespace jaxmg {

enum class Code {
  kOk = 0,
  kInvalidArgument,    // the call can't be right
  kResourceExhausted,  // out of memory
  kUnavailable,        // a library or a device is missing
  kDeadlineExceeded,   // a rank did not arrive in time
  kAborted,            // another rank failed
  kInternal,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// Error(Code::kInternal, "rank ", 3, " is missing"): a Status from the pieces of its message.
template <typename... Pieces>
Status Error(Code code, const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  return Status(code, text.str());
}

// What `step` returns, or an error where it throws: the host may run out of memory for small things
// anywhere, and other ranks must hear of it.
template <typename Step>
Status Guarded(const Step& step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return Error(Code::kResourceExhausted, "out of host memory");
  } catch (const std::exception& error) {
    return Error(Code::kInternal, error.what());
  }
}

}  // namespace jaxmg

#define JAXMG_RETURN_IF_ERROR(expression)          \
  do {                                             \
    ::jaxmg::Status jaxmg_status_ = (expression);  \
    if (!jaxmg_status_.ok()) return jaxmg_status_; \
  } while (false)

#endif  // JAXMG_XLA_FFI_BASE_STATUS_H_
