#include "xla_ffi/handlers/platform/site_state.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace jaxmg {
namespace {

// Structures of XLA's C API that have changed since version 0.1, whose headers this file is
// compiled with. XLA checks their size and accepts larger structures.

// Since API 0.2 the deleter is registered with the type. In earlier versions it was passed with the
// state.
struct TypeInfo {
  size_t struct_size = sizeof(TypeInfo);
  void* extension_start = nullptr;
  void (*deleter)(void*) = nullptr;
};
struct RegisterType {
  size_t struct_size = sizeof(RegisterType);
  void* extension_start = nullptr;
  XLA_FFI_ByteSpan name = {};
  XLA_FFI_TypeId* type_id = nullptr;
  const TypeInfo* type_info = nullptr;
};
static_assert(offsetof(RegisterType, type_id) == offsetof(XLA_FFI_TypeId_Register_Args, type_id));

// Up to API 0.2 only the instantiate stage has a state.
constexpr int kStagesHaveStates = 3;
struct StateOfStage {
  size_t struct_size = sizeof(StateOfStage);
  void* extension_start = nullptr;
  XLA_FFI_ExecutionContext* ctx = nullptr;
  XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  XLA_FFI_TypeId* type_id = nullptr;
  void* state = nullptr;
};

void DeleteState(void* state) { delete static_cast<SiteState*>(state); }

bool StatesHaveStages(const XLA_FFI_Api* api) {
  return api->api_version.minor_version >= kStagesHaveStates;
}

std::string TakeMessage(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  // Newer versions append the code; the message is at the same offset.
  struct {
    XLA_FFI_Error_GetMessage_Args args;
    int64_t code;
  } message = {};
  message.args.struct_size = sizeof(message);
  message.args.error = error;
  api->XLA_FFI_Error_GetMessage(&message.args);
  std::string text = message.args.message == nullptr ? "" : message.args.message;
  XLA_FFI_Error_Destroy_Args destroy = {};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return text;
}

struct StateType {
  std::mutex mutex;
  XLA_FFI_TypeId id = {0};
};
StateType& RegisteredStateType() {
  static auto* type = new StateType;
  return *type;
}

Status RegisterStateType(const XLA_FFI_Api* api, XLA_FFI_TypeId** id) {
  StateType& type = RegisteredStateType();
  std::lock_guard<std::mutex> lock(type.mutex);
  *id = &type.id;
  if (type.id.type_id != 0) return Status::Ok();
  static constexpr char kName[] = "jaxmg_shared_site";
  TypeInfo info;
  info.deleter = &DeleteState;
  RegisterType args;
  args.name = {kName, sizeof(kName) - 1};
  args.type_id = &type.id;
  args.type_info = &info;
  if (XLA_FFI_Error* error =
          api->XLA_FFI_TypeId_Register(reinterpret_cast<XLA_FFI_TypeId_Register_Args*>(&args))) {
    type.id = {0};
    return Error(Code::kInternal,
                 "XLA refuses the type of a call's state: ", TakeMessage(api, error));
  }
  return Status::Ok();
}

}  // namespace

Status StoreSiteState(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                      std::shared_ptr<const SharedCallSite> shared) {
  static std::atomic<int64_t> numbers{0};
  XLA_FFI_TypeId* id;
  JAXMG_RETURN_IF_ERROR(RegisterStateType(api, &id));
  auto state = std::make_unique<SiteState>(SiteState{++numbers, std::move(shared)});
  XLA_FFI_Error* error;
  if (StatesHaveStages(api)) {
    StateOfStage args;
    args.ctx = ctx;
    args.type_id = id;
    args.state = state.get();
    error = api->XLA_FFI_State_Set(reinterpret_cast<XLA_FFI_State_Set_Args*>(&args));
  } else {
    XLA_FFI_State_Set_Args args = {};
    args.struct_size = XLA_FFI_State_Set_Args_STRUCT_SIZE;
    args.ctx = ctx;
    args.type_id = id;
    args.state = state.get();
    args.deleter = &DeleteState;
    error = api->XLA_FFI_State_Set(&args);
  }
  if (error != nullptr) {
    return Error(Code::kInternal,
                 "XLA doesn't keep the state of a call: ", TakeMessage(api, error));
  }
  state.release();  // XLA owns it
  return Status::Ok();
}

SiteState FindSiteState(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx) noexcept {
  XLA_FFI_TypeId* id = &RegisteredStateType().id;  // written before any execution
  if (id->type_id == 0) return {};
  XLA_FFI_Error* error;
  void* state;
  if (StatesHaveStages(api)) {
    StateOfStage args;
    args.ctx = ctx;
    args.type_id = id;
    error = api->XLA_FFI_State_Get(reinterpret_cast<XLA_FFI_State_Get_Args*>(&args));
    state = args.state;
  } else {
    XLA_FFI_State_Get_Args args = {};
    args.struct_size = XLA_FFI_State_Get_Args_STRUCT_SIZE;
    args.ctx = ctx;
    args.type_id = id;
    error = api->XLA_FFI_State_Get(&args);
    state = args.state;
  }
  if (error == nullptr) return *static_cast<SiteState*>(state);
  XLA_FFI_Error_Destroy_Args destroy = {};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return {};
}

}  // namespace jaxmg
