#pragma once

#include <string>
#include <vector>

namespace packjit {

/// One place where the NVRTC library may be.
struct NvrtcCandidate {
  std::string origin;  ///< why it is looked at: "PACKJIT_NVRTC", "CUDA_HOME", "Python wheel"...
  std::string path;    ///< a file that exists, or a bare name for the system's own search
};

/// Where NVRTC is looked for, in order: PACKJIT_NVRTC alone when it is set; else CUDA_HOME and CUDA_PATH, toolkits
/// under /usr/local, the system's library path, the Python wheel nvidia-cuda-nvrtc in the environments that
/// VIRTUAL_ENV, CONDA_PREFIX and PATH name, and the folder that the build fell back to. Reads the environment and lists
/// folders; opens nothing. `searched` receives every folder that was looked at, found or not, for messages; may be
/// null.
[[nodiscard]] std::vector<NvrtcCandidate> nvrtc_candidates(std::vector<std::string>* searched = nullptr);

}  // namespace packjit
