// Ctrl-C while a framework runs a graph. MindSpore replaces the handler of SIGINT at each run, and once more from a
// thread of its own, by one that sends its own process SIGTERM, and leaves it there. Between MsmsBeginRun and
// MsmsEndRun a SIGTERM that the process sent itself is given to the program's own handler of SIGINT; afterwards both
// signals are again as the program wants them.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

namespace {
struct sigaction interrupt_wanted, terminate_wanted;  // zeros: SIG_DFL
std::mutex mutex;
int runs = 0;

bool IsMindSpores(const struct sigaction &action) {
  Dl_info info;
  return (action.sa_flags & SA_SIGINFO) && dladdr(reinterpret_cast<void *>(action.sa_sigaction), &info) && info.dli_fname &&
         std::strstr(info.dli_fname, "libmindspore");
}

void Forward(const struct sigaction &to, int number, siginfo_t *info, void *context) {
  if (to.sa_flags & SA_SIGINFO) {
    to.sa_sigaction(number, info, context);
  } else if (to.sa_handler == SIG_DFL) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  } else if (to.sa_handler != SIG_IGN) {
    to.sa_handler(number);
  }
}

void OnTerminate(int number, siginfo_t *info, void *context) {
  const bool own = info->si_code == SI_USER && info->si_pid == getpid();
  Forward(own ? interrupt_wanted : terminate_wanted, own ? SIGINT : number, info, context);
}

bool IsOurs(const struct sigaction &action) { return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == OnTerminate; }
}  // namespace

extern "C" {
// Several runs may overlap: the first one in and the last one out do the work.
void MsmsBeginRun() {
  std::lock_guard<std::mutex> guard(mutex);
  if (runs++) return;
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) == 0 && !IsMindSpores(now)) interrupt_wanted = now;
  sigaction(SIGTERM, nullptr, &terminate_wanted);
  struct sigaction action {};
  action.sa_sigaction = OnTerminate;
  action.sa_flags = SA_SIGINFO | (terminate_wanted.sa_flags & (SA_RESTART | SA_ONSTACK));
  sigaction(SIGTERM, &action, nullptr);
}

void MsmsEndRun() {
  std::lock_guard<std::mutex> guard(mutex);
  if (--runs) return;
  struct sigaction now;
  // What the program itself has set meanwhile stays.
  if (sigaction(SIGINT, nullptr, &now) == 0 && IsMindSpores(now)) sigaction(SIGINT, &interrupt_wanted, nullptr);
  if (sigaction(SIGTERM, nullptr, &now) == 0 && IsOurs(now)) sigaction(SIGTERM, &terminate_wanted, nullptr);
}
}
