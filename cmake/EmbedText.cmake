# Sets RESULT to C++ string literals that hold the text of the file.
function(packjit_literals path result)
  file(READ "${path}" text)
  # Compilers limit the length of one literal; adjacent ones are joined.
  string(LENGTH "${text}" length)
  set(literals "")
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 8000 piece)
    string(APPEND literals "R\"packjit(${piece})packjit\"\n")
    math(EXPR begin "${begin} + 8000")
  endwhile()
  set(${result} "${literals}" PARENT_SCOPE)
endfunction()
