# Writes OUTPUT, a C++ file that defines packjit::shipped_texts for the FILES.
set(texts "")
foreach(path IN LISTS FILES)
  file(READ "${path}" text)
  # Compilers limit the length of one literal; adjacent ones are joined.
  string(LENGTH "${text}" length)
  set(literal "")
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 8000 piece)
    string(APPEND literal "R\"packjit(${piece})packjit\"\n")
    math(EXPR begin "${begin} + 8000")
  endwhile()
  string(APPEND texts "\n      ${literal},")
endforeach()
file(WRITE "${OUTPUT}" "#include \"database/shipped.hpp\"

namespace packjit {

std::vector<std::string_view> shipped_texts() {
  return {${texts}};
}

}  // namespace packjit
")
